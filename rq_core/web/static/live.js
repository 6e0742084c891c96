// What the page does more than show itself: it looks again every two seconds while it is seen, shows moments in the
// reader's own zone, and takes the keys / j k and Enter. Without this file every page still works.
(() => {
  "use strict";
  const EVERY_MS = 2000;
  let tag = null;

  const seen = () => document.visibilityState === "visible" && !window.getSelection().toString();
  setInterval(() => seen() && document.body.dispatchEvent(new Event("tick")), EVERY_MS);

  // An answer that is the same as the last one comes without a body, and changes nothing.
  document.addEventListener("htmx:config:request", (event) => {
    if (tag) event.detail.ctx.request.headers["If-None-Match"] = tag;
  });
  document.addEventListener("htmx:after:request", (event) => {
    const response = event.detail.ctx.response;
    if (response && response.headers) tag = response.headers.get("ETag") || tag;
    document.body.classList.remove("stale");
  });
  document.addEventListener("htmx:error", () => document.body.classList.add("stale"));

  const two = (number) => String(number).padStart(2, "0");
  function localise() {
    for (const each of document.querySelectorAll("time[data-local]")) {
      const at = new Date(each.dateTime);
      if (isNaN(at)) continue;
      const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
      const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
      const ms = String(at.getMilliseconds()).padStart(3, "0");
      each.textContent = each.dataset.local === "clock" ? `${clock}.${ms}` : `${day} ${clock}`;
    }
  }
  document.addEventListener("htmx:after:swap", localise);
  localise();

  const rows = () => [...document.querySelectorAll("main a[data-row]")].filter((a) => a.offsetParent);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "/") {
      const box = document.querySelector("[data-search]");
      if (box) { event.preventDefault(); box.focus(); box.select && box.select(); }
    } else if (event.key === "j" || event.key === "k") {
      const all = rows();
      const at = all.indexOf(document.activeElement);
      const next = all[at < 0 ? 0 : at + (event.key === "j" ? 1 : -1)];
      if (next) next.focus();
    }
  });
})();
