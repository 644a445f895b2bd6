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
})();
