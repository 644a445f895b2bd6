"use strict";
// Complete SQL's words and the names of tables and columns, which the page lists beside the editor.
(function () {
  var editor = document.getElementById("q"), list = document.getElementById("words"), chosen = 0, shown = [];
  var keywords = ("SELECT FROM WHERE GROUP BY ORDER LIMIT HAVING JOIN LEFT USING DISTINCT COUNT AVG SUM MIN MAX MEDIAN CASE WHEN THEN ELSE END " +
    "AND OR NOT IN IS NULL BETWEEN LIKE ILIKE DESC ASC UNION ALL WITH AS ON FILTER OVER PARTITION QUALIFY DESCRIBE SUMMARIZE INTERVAL").split(" ");
  var tables = new Map();
  document.querySelectorAll(".schema .relation").forEach(function (relation) {
    tables.set(relation.querySelector("summary code").textContent, Array.from(relation.querySelectorAll("dt code"), function (name) { return name.textContent; }));
  });

  function word() { return /[A-Za-z_][\w]*$/.exec(editor.value.slice(0, editor.selectionStart)); }
  function fitting(begun) {
    var text = editor.value.toLowerCase(), own = [], others = [];
    tables.forEach(function (columns, name) { (new RegExp("\\b" + name + "\\b").test(text) ? own : others).push(columns); });
    // Columns of the tables that the query names come first; of other tables only where it names none.
    var names = own.flat().concat(Array.from(tables.keys()), keywords, own.length ? [] : others.flat());
    return Array.from(new Set(names)).filter(function (name) {
      return name.length > begun.length && name.toLowerCase().startsWith(begun.toLowerCase());
    }).slice(0, 8);
  }
  function show() {
    var begun = document.activeElement === editor && editor.selectionStart === editor.selectionEnd && word();
    shown = begun && begun[0].length > 1 ? fitting(begun[0]) : [];
    chosen = 0;
    draw();
  }
  function draw() {
    list.hidden = !shown.length;
    list.replaceChildren.apply(list, shown.map(function (name, at) {
      var item = document.createElement("li");
      item.id = "word-" + at;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(at === chosen));
      item.textContent = name;
      item.addEventListener("mousedown", function (event) { event.preventDefault(); take(name); });
      return item;
    }));
    if (shown.length) { editor.setAttribute("aria-activedescendant", "word-" + chosen); } else { editor.removeAttribute("aria-activedescendant"); }
  }
  function take(name) {
    var begun = word();
    editor.setRangeText(name, editor.selectionStart - begun[0].length, editor.selectionStart, "end");
    shown = [];
    draw();
  }
  editor.addEventListener("input", show);
  editor.addEventListener("blur", function () { shown = []; draw(); });
  editor.addEventListener("keydown", function (event) {
    if (!shown.length || event.ctrlKey || event.metaKey) { return; }
    if (event.key === "Escape") { shown = []; draw(); }
    else if (event.key === "Tab" && !event.shiftKey) { event.preventDefault(); take(shown[chosen]); }
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : shown.length - 1)) % shown.length;
      draw();
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") { shown = []; draw(); }
  });
})();
