"use strict";
(function () {
  var root = document.documentElement;
  var dark = matchMedia("(prefers-color-scheme: dark)");
  function restyled() { document.dispatchEvent(new Event("restyled")); }
  document.getElementById("theme").addEventListener("click", function () {
    var now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    restyled();
  });
  dark.addEventListener("change", restyled);
  // On paper everything but tables of numbers and prompts is open, and light; before the charts draw themselves, hence in the capturing phase.
  var closed = null, theme;
  addEventListener("beforeprint", function () {
    if (closed) { return; }
    theme = root.dataset.theme;
    closed = Array.from(document.querySelectorAll("details:not([open], .numbers, .labelled details)"));
    closed.forEach(function (one) { one.open = true; });
    root.dataset.theme = "light";
    restyled();
  }, true);
  addEventListener("afterprint", function () {
    (closed || []).forEach(function (one) { one.open = false; });
    closed = null;
    if (theme) { root.dataset.theme = theme; } else { delete root.dataset.theme; }
    restyled();
  });
})();
