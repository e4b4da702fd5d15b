"""The dashboard under `/ui`: pages rendered here, from the same store and by the same questions as the control API.

    proxy/app ──> entry (key or cookie, Host, CSRF, CSP) ──> pages ──> *_view (pure) ──> templates/
                                                                └─> static/ (htmx, uPlot and our own scripts)

All that agents said is untrusted: it reaches a page through autoescape alone, and the policy (CSP) lets no inline
script run. Nothing here is imported by the model path; jinja2 is loaded when the first page is asked for.
"""

__all__: list[str] = []
