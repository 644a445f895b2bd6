"use strict";
// Views are counted one after the other once the page is there: each is a query, and none keeps the archive for long.
(function () {
  var cells = Array.from(document.querySelectorAll("[data-count]"));
  function next() {
    var cell = cells.shift();
    if (!cell) { return; }
    fetch(cell.dataset.count, { credentials: "same-origin" })
      .then(function (answer) { return answer.ok ? answer.json() : null; })
      .then(function (found) { if (found) { cell.textContent = found.rows[0][0].toLocaleString("en"); } })
      .catch(function () { /* the archive was busy: the number stays unknown */ })
      .then(next);
  }
  next();
})();
