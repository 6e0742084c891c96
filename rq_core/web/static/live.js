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

  // The moment in a form, too, with its zone: who changes 02:55 there means their own clock.
  for (const each of document.querySelectorAll("input[data-moment]")) {
    const at = new Date(each.value);
    if (isNaN(at)) continue;
    const west = at.getTimezoneOffset();
    const zone = `${west > 0 ? "-" : "+"}${two(Math.trunc(Math.abs(west) / 60))}:${two(Math.abs(west) % 60)}`;
    each.value = new Date(at - west * 60000).toISOString().slice(0, -1).replace("T", " ") + zone;
  }

  // Ages grow by themselves, by the server's clock: a page whose ages alone have changed is not sent again.
  const meta = document.querySelector('meta[name="now"]');
  const ahead = meta ? Number(meta.content) - Date.now() : 0;
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function span(ms) {
    let left = Math.floor(Math.abs(ms) / 1000);
    const words = [];
    for (const [seconds, unit] of UNITS) {
      if (left >= seconds) words.push(`${Math.floor(left / seconds)} ${unit}`);
      left %= seconds;
    }
    return words.slice(0, 2).join(" ") || "0 s";
  }
  const SAYS = {
    ago: (ms) => `${span(ms)} ago`,
    for: (ms) => span(ms),
    due: (ms) => (ms <= 0 ? `in ${span(ms)}` : `late by ${span(ms)}`),
  };
  function grow() {
    for (const each of document.querySelectorAll("time[data-age]")) {
      const ms = Date.now() + ahead - new Date(each.dateTime);
      const says = isNaN(ms) ? null : SAYS[each.dataset.age](ms);
      if (says && says !== each.textContent) each.textContent = says;
    }
  }
  setInterval(() => seen() && grow(), 1000);
  document.addEventListener("htmx:after:swap", grow);

  // A change of many jobs: each answer says how far it has come, and the form sends the next request. It ends with this
  // page, and the address always says where it goes on.
  async function drive(form) {
    const says = form.querySelector("[data-says]");
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      for (;;) {
        const body = new URLSearchParams(new FormData(form));
        const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "application/json" }, redirect: "manual" });
        if (answer.type === "opaqueredirect") throw new Error("your token is needed again: open /login in another tab");
        const told = await answer.json();
        if (told.error) throw new Error(told.error);
        if (told.is_last) return location.assign(told.leads_to);
        form.elements.at.value = told.at;
        says.textContent = told.says;
        history.replaceState(null, "", told.leads_to);
      }
    } catch (error) {
      const why = error instanceof TypeError ? "the page's server does not answer" : error.message;
      says.textContent = `It stopped: ${why}. Press again to go on.`;
      button.disabled = false;
    }
  }
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-many]")) return;
    event.preventDefault();
    drive(event.target);
  });

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
