"""The pages: a question to the store, a view, a template. What is asked for by htmx gets the part that it wants."""

import asyncio
import re
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

from mosaic.errors import RequestError
from mosaic.records import TrajectoryState
from mosaic.settings import Settings
from mosaic.store import Store, browsing, call_browsing, feed, progress, schedules
from mosaic.store.browsing import Filter
from mosaic.store.reading import load
from mosaic.store.stats import stats
from proxy.browse_api import ask_for_run, group_of
from proxy.doctor import Latest
from proxy.events import Events
from proxy.ui import entry
from proxy.ui.call_view import curl, message_view, message_views, pretty, request_body, strip, tools_of
from proxy.ui.rendering import FOLDER, render
from proxy.ui.schedule_view import ScheduleView, schedule_view
from proxy.ui.token_texts import TokenTexts
from proxy.ui.training_view import SUCCESS, plots_json, task_lines, training_view
from proxy.ui.trajectory_view import gist, mark_of, trajectory_view

ROWS = 50
"""Trajectories of a page."""
CALLS_DRAWN = 5000
"""Calls of a trajectory that are drawn."""
LINES = 100
"""Lines of a session's calls that are shown at first."""
MESSAGES = 30
"""Messages that are shown at once."""
OUTCOMES: dict[str, dict[str, Any]] = {
    "success": {"min_reward": SUCCESS},
    "failure": {"below_reward": SUCCESS},
    "unscored": {"scored": False},
}


class Pages:
    """What all pages need."""

    def __init__(self, settings: Settings, store: Store, texts: TokenTexts) -> None:
        self.settings = settings
        self.store = store
        self.texts = texts

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A whole page, with what its head needs; a browser without a cookie gets one where no key is asked for."""
        cookie = entry.cookie_of(dict(request.headers))
        fresh = cookie is None
        cookie = cookie or entry.new_cookie(self.settings)
        said = render(template, csrf=entry.csrf(cookie), path=request.url.path, **values)
        answer = HTMLResponse(said, status, {"cache-control": "no-store"})
        if fresh:
            answer.headers.append("set-cookie", entry.set_cookie(cookie, secure=request.url.scheme == "https"))
        return answer


def part(template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> HTMLResponse:
    """A part of a page."""
    return HTMLResponse(render(template, **values), status, {"cache-control": "no-store", **(headers or {})})


def wants_page(request: Request) -> bool:
    """Whether a browser asks for a page of the dashboard's, and not for a part of one or for data."""
    page = entry.is_ui(request.url.path) and "text/html" in request.headers.get("accept", "")
    return page and not wants_part(request)


def failed(request: Request, status: int, message: str, next_step: str) -> HTMLResponse:
    """The page that says what went wrong."""
    return part("error.html", status, message=message, next_step=next_step, csrf="", path=request.url.path)


def wants_part(request: Request) -> bool:
    """Whether htmx asks, and not for a page of its history."""
    return "hx-request" in request.headers and "hx-history-restore-request" not in request.headers


class Wanted:
    """The filters of the list, as its address says them."""

    def __init__(
        self,
        q: str = Query("", max_length=200),
        state: str = Query("", max_length=16),
        outcome: str = Query("", max_length=16),
        task: str = Query(""),
    ) -> None:
        self.q, self.state, self.outcome, self.task = q.strip(), state, outcome, task

    def filter(self) -> Filter:
        """For the store."""
        bounds = OUTCOMES.get(self.outcome, {})
        return Filter(text=self.q or None, state=self.state or None, task_key=self.task or None, **bounds)

    def query(self, **changes: str) -> str:
        """The address' query with these changes, empty ones left out."""
        values = {"q": self.q, "state": self.state, "outcome": self.outcome, "task": self.task, **changes}
        return urllib.parse.urlencode({name: value for name, value in values.items() if value})


def router(settings: Settings, store: Store, events: Events, texts: TokenTexts, found: Latest) -> APIRouter:
    """All routes under `/ui`. Whoever serves them has let in who may (`entry.check`)."""
    pages = Pages(settings, store, texts)
    ui = APIRouter(prefix=entry.PREFIX, include_in_schema=False)
    _add_entry(ui, pages)
    _add_lists(ui, pages, events)
    _add_trajectory(ui, pages)
    _add_call(ui, pages)
    _add_training(ui, pages)
    _add_health(ui, pages, found)
    return ui


def _add_entry(ui: APIRouter, pages: Pages) -> None:
    @ui.get("")
    @ui.get("/")
    def root() -> Response:
        return RedirectResponse(f"{entry.PREFIX}/trajectories", 303)

    @ui.get("/login")
    def ask(request: Request, wanted: Annotated[str | None, Query(alias="next")] = None) -> HTMLResponse:
        return part("login.html", next=entry.place_after(wanted), wrong="", csrf="", path=request.url.path)

    @ui.post("/login")
    async def enter(request: Request) -> Response:
        form = dict(urllib.parse.parse_qsl((await request.body()).decode("utf-8", "replace")))
        goal = entry.place_after(form.get("next"))
        try:
            cookie = entry.new_cookie(pages.settings, form.get("key", ""))
        except RequestError:
            return part("login.html", 401, next=goal, wrong="That is none of the proxy's api_keys.", csrf="", path="")
        answer = RedirectResponse(goal, 303)
        answer.headers.append("set-cookie", entry.set_cookie(cookie, secure=request.url.scheme == "https"))
        return answer

    @ui.get("/static/{name:path}")
    def static(name: str) -> Response:
        if not re.fullmatch(r"(vendor/)?[\w.-]+", name) or not (FOLDER / "static" / name).is_file():
            raise RequestError("there is no such file.", status=404)
        return FileResponse(FOLDER / "static" / name, headers={"cache-control": "no-cache"})


def _add_lists(ui: APIRouter, pages: Pages, events: Events) -> None:
    @ui.get("/trajectories")
    def trajectories(request: Request, wanted: Wanted = Depends(), cursor: str | None = None) -> HTMLResponse:
        with pages.store.database.reading() as connection:
            mark = feed.newest(connection)
            found = browsing.page(connection, wanted.filter(), cursor, ROWS)
            counts = browsing.states(connection)
            named = browsing.trajectory_of(connection, wanted.q) if wanted.q and not cursor else None
        values: dict[str, Any] = {"page": found, "wanted": wanted, "named": named}
        if wants_part(request) and cursor:
            return part("_rows.html", **values)
        shown_states = [s.value for s in TrajectoryState if counts.get(s.value) or s.value == wanted.state]
        values |= {"mark": str(mark), "counts": counts, "states": shown_states, "outcomes": OUTCOMES}
        if wants_part(request):
            return part("_list.html", **values)
        return pages.page(request, "trajectories.html", **values)

    @ui.get("/rows")
    def rows(one: Annotated[list[str], Query(alias="id", max_length=100)]) -> HTMLResponse:
        with pages.store.database.reading() as connection:
            found = browsing.by_ids(connection, one)
        return part("_rows.html", page=browsing.Page(found, None), wanted=None, named=None)

    @ui.get("/events")
    def follow(request: Request, start: str | None = None, trajectory: str | None = None) -> StreamingResponse:
        return events.answer(request.headers.get("last-event-id") or start, trajectory)


def _add_trajectory(ui: APIRouter, pages: Pages) -> None:
    @ui.get("/t/{trajectory_id}")
    def trajectory(request: Request, trajectory_id: str) -> HTMLResponse:
        values = _trajectory(pages.store, trajectory_id)
        if wants_part(request):
            return part("_trajectory.html", **values)
        return pages.page(request, "trajectory.html", **values)

    @ui.get("/t/{trajectory_id}/calls")
    def calls(trajectory_id: str, session: str, cursor: str) -> HTMLResponse:
        with pages.store.database.reading() as connection:
            found = call_browsing.call_lines(connection, trajectory_id, cursor, LINES, session)
        return part(
            "_calls.html",
            calls=found.items,
            next=found.next,
            trajectory_id=trajectory_id,
            session_id=session,
            started_at=None,
            gist=gist,
            mark_of=mark_of,
        )

    @ui.post("/t/{trajectory_id}/reward")
    async def reward(request: Request, trajectory_id: str) -> HTMLResponse:
        form = dict(urllib.parse.parse_qsl((await request.body()).decode("utf-8", "replace")))
        refused = False
        try:
            value = None if form.get("unscorable") else _reward(form.get("reward", ""))
            session = form.get("session") or None
            note = form.get("note") or None
            outcome = await asyncio.to_thread(
                pages.store.reward, trajectory_id, value, "dashboard", note, session_id=session
            )
            said = "Given." if outcome.in_force else "Kept, but it came after the window and is not used."
        except RequestError as error:
            said, refused = str(error), True
        values = await asyncio.to_thread(_trajectory, pages.store, trajectory_id)
        return part("_trajectory.html", **{**values, "said": said, "refused": refused})


def _reward(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"{text[:40]!r} is no number.", "Give one such as 1 or 0.25.") from None


def _trajectory(store: Store, trajectory_id: str) -> dict[str, Any]:
    with store.database.reading() as connection:
        mark = feed.newest(connection)
        summary, row = browsing.overview(connection, trajectory_id)
        sessions = browsing.sessions(connection, trajectory_id)
        calls = call_browsing.call_lines(connection, trajectory_id, None, CALLS_DRAWN)
        rewards = browsing.rewards(connection, trajectory_id)
    return {
        "trajectory": summary,
        "row": row,
        "view": trajectory_view(sessions, calls.items),
        "more_calls": calls.next is not None,
        "rewards": rewards,
        "mark": str(mark),
        "lines": LINES,
        "gist": gist,
        "mark_of": mark_of,
        "said": "",
        "refused": False,
    }


def _add_call(ui: APIRouter, pages: Pages) -> None:
    @ui.get("/c/{call_id}")
    def call(request: Request, call_id: str) -> HTMLResponse:
        with pages.store.database.reading() as connection:
            row = call_browsing.call_row(connection, call_id)
            params = call_browsing.params(connection, row)
            before, after = call_browsing.neighbours(connection, row)
            until = call_browsing.head_of(connection, row["parent_call_id"])
            messages = call_browsing.chain(connection, row["message_id"], MESSAGES, until)
            replies = call_browsing.replies(connection, call_id)
            session = browsing.sessions(connection, row["trajectory_id"], row["session_id"])[0]
        return pages.page(
            request,
            "call.html",
            call=row,
            session=session,
            before=before,
            after=after,
            messages=message_views(messages.items),
            earlier=messages.next,
            since_parent=until is not None,
            replies=[(reply, message_view(reply["body"])) for reply in replies],
            tools=tools_of(params),
            params={name: value for name, value in params.items() if name not in ("tools", "client_request")},
            client_request=params.get("client_request"),
            evidence=load(row["evidence"]) if row["evidence"] else {},
            rivals=load(row["rivals"]) if row["rivals"] else [],
            pretty=pretty,
        )

    @ui.get("/c/{call_id}/messages")
    def earlier(call_id: str, cursor: int = Query(ge=0, lt=2**63)) -> HTMLResponse:
        with pages.store.database.reading() as connection:
            found = call_browsing.chain(connection, cursor, MESSAGES)
        return part("_messages.html", messages=message_views(found.items), earlier=found.next, call_id=call_id)

    @ui.get("/c/{call_id}/{form}.txt")
    def raw(request: Request, call_id: str, form: str) -> Response:
        with pages.store.database.reading() as connection:
            row = call_browsing.call_row(connection, call_id)
            if form == "response":
                return PlainTextResponse(pretty(call_browsing.replies(connection, call_id)))
            messages = call_browsing.chain(connection, row["message_id"], 10**6)
            body = request_body(call_browsing.params(connection, row), messages.items)
        if form == "curl":
            base = f"{request.url.scheme}://{request.url.netloc}/t/{urllib.parse.quote(row['trajectory_id'], safe='')}"
            return PlainTextResponse(curl(base, body))
        return PlainTextResponse(pretty(body))

    @ui.get("/c/{call_id}/tokens.json")
    async def tokens(call_id: str, choice: int = Query(0, ge=0, lt=2**31)) -> JSONResponse:
        drawn = await asyncio.to_thread(_strip, pages.store, call_id, choice)
        known = await pages.texts.of([*drawn["prompt"], *drawn["ids"]])
        drawn["texts"] = {str(one): text for one, text in known.items()}
        return JSONResponse(drawn, headers={"cache-control": "no-store"})


def _strip(store: Store, call_id: str, choice: int) -> dict[str, Any]:
    with store.database.reading() as connection:
        row = call_browsing.call_row(connection, call_id)
        found = call_browsing.choice_tokens(connection, call_id, choice)
        session = browsing.sessions(connection, row["trajectory_id"], row["session_id"])[0]
    return strip(found, row["exact"] and row["auxiliary"] is None, session.advantage)


def _add_training(ui: APIRouter, pages: Pages) -> None:
    @ui.get("/groups")
    def groups(request: Request) -> HTMLResponse:
        with pages.store.database.reading() as connection:
            lines = task_lines(progress.recent(connection))[:200]
            texts = progress.task_texts(connection, [line.task_key for line in lines])
        return pages.page(request, "groups.html", lines=lines, texts=texts, success=SUCCESS)

    @ui.get("/group")
    def group(
        request: Request, task: str, version: Annotated[int | None, Query(ge=0, lt=2**31)] = None
    ) -> HTMLResponse:
        return pages.page(request, "group.html", group=group_of(pages.store, task, version))

    @ui.get("/training")
    def training(request: Request) -> HTMLResponse:
        view, jobs, versions = _training(pages.store)
        schedule = _schedule(pages.store)
        return pages.page(request, "training.html", view=view, jobs=jobs, versions=versions, schedule=schedule)

    @ui.post("/schedule/run")
    def run_now() -> HTMLResponse:
        ask_for_run(pages.store)
        return part("_schedule.html", schedule=_schedule(pages.store))

    @ui.get("/training.json")
    def plots() -> JSONResponse:
        return JSONResponse(plots_json(_training(pages.store)[0]), headers={"cache-control": "no-store"})


def _training(store: Store) -> tuple[Any, list[progress.Job], list[progress.Version]]:
    with store.database.reading() as connection:
        jobs, versions = progress.jobs(connection), progress.versions(connection)
        return training_view(progress.recent(connection), jobs, versions), jobs, versions


def _schedule(store: Store) -> ScheduleView:
    with store.database.reading() as connection:
        state = schedules.read(connection)
    return schedule_view(state, store.lease_holder(schedules.LEASE))


def _add_health(ui: APIRouter, pages: Pages, found: Latest) -> None:
    @ui.get("/health")
    def health(request: Request) -> HTMLResponse:
        return pages.page(request, "health.html", counters=pages.store.counters())

    @ui.get("/health/findings")
    async def findings() -> HTMLResponse:
        return part("_findings.html", findings=await found.findings())

    @ui.get("/health/certificate")
    def certificate() -> HTMLResponse:
        return part("_certificate.html", stats=stats(pages.store.database), certificate=pages.store.certificate())
