"use strict";
// The theme, and pages that follow the archive: whatever has data-live is replaced when something was archived.
(function () {
  var root = document.documentElement;
  var dark = matchMedia("(prefers-color-scheme: dark)");
  try { if (localStorage.theme) { root.dataset.theme = localStorage.theme; } } catch (e) { /* no storage: the browser's theme */ }

  document.getElementById("theme").addEventListener("click", function () {
    var now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.theme = root.dataset.theme; } catch (e) { /* as above */ }
    document.dispatchEvent(new Event("restyled"));
  });
  dark.addEventListener("change", function () { document.dispatchEvent(new Event("restyled")); });

  // Parts that take long to find, or that the archive does not know of, are asked for by themselves, now and then.
  document.querySelectorAll("[data-fetch]").forEach(function (part) {
    function ask() {
      if (document.hidden) { setTimeout(ask, 5000); return; }
      fetch(part.dataset.fetch, { credentials: "same-origin" })
        .then(function (answer) { if (!answer.ok) { throw new Error(answer.status); } return answer.text(); })
        .then(function (text) { part.replaceChildren.apply(part, new DOMParser().parseFromString(text, "text/html").body.childNodes); })
        .catch(function () { /* the log could not be asked, or the archive was busy: once more later */ })
        .then(function () { setTimeout(ask, 10000); });
    }
    ask();
  });

  var live = document.getElementById("live");
  var regions = document.querySelectorAll("[data-live]");
  if (!document.body.dataset.events || !regions.length) { return; }

  var known = null, wanted = null, busy = false;
  var leastMs = 1500, mostMs = 15000; // between two refreshes; within that, ten times what one takes

  function choices(region) { return Array.from(region.querySelectorAll("input[type=checkbox]")); }
  function refresh() {
    if (busy || wanted === known || document.hidden) { return; }
    busy = true;
    var state = wanted, begun = performance.now();
    fetch(location.href, { credentials: "same-origin" })
      .then(function (answer) { if (!answer.ok) { throw new Error(answer.status); } return answer.text(); })
      .then(function (text) {
        var fresh = new DOMParser().parseFromString(text, "text/html");
        document.querySelectorAll("[data-live]").forEach(function (region) {
          var other = fresh.getElementById(region.id);
          if (!other || region.innerHTML === other.innerHTML) { return; }
          var chosen = new Map(choices(region).map(function (box) { return [box.value, box.checked]; }));
          var at = region.contains(document.activeElement) ? document.activeElement : null, again = at && (at.value || at.href);
          region.innerHTML = other.innerHTML;
          // What a person has chosen, and where the keyboard is, stay.
          choices(region).forEach(function (box) { if (chosen.has(box.value)) { box.checked = chosen.get(box.value); } });
          if (again) {
            var same = Array.from(region.querySelectorAll(at.tagName)).find(function (one) { return (one.value || one.href) === again; });
            if (same) { same.focus({ preventScroll: true }); }
          }
        });
        known = state;
        document.dispatchEvent(new Event("refreshed"));
      })
      .catch(function () { /* the archive was busy or the server ended: the next event tries again */ })
      .then(function () {
        var took = performance.now() - begun;
        setTimeout(function () { busy = false; refresh(); }, Math.min(mostMs, Math.max(leastMs, 10 * took)));
      });
  }

  // Hidden pages let go of their connection: a browser has six for all pages of a host.
  var source = null;
  function listen() {
    if (document.hidden) {
      if (source) { source.close(); source = null; }
      return;
    }
    if (source) { return; }
    source = new EventSource(document.body.dataset.events);
    source.addEventListener("open", function () { live.textContent = "live"; live.dataset.on = ""; });
    source.addEventListener("error", function () { live.textContent = "not connected"; delete live.dataset.on; });
    source.addEventListener("changed", function (event) {
      wanted = event.data; // the first one too: the archive may have changed since the page was made
      refresh();
    });
  }
  document.addEventListener("visibilitychange", listen);
  listen();
})();
