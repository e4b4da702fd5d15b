// Before the first paint: the theme that was chosen, else the system's.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("mosaic-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch { /* storage may be forbidden; the system's theme it is */ }
})();
