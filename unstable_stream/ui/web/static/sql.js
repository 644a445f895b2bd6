"use strict";
// Ask the archive, show rows as a table and a chart. The address holds the query.
(function () {
  var form = document.getElementById("sql"), editor = document.getElementById("q");
  var ask = document.getElementById("ask"), cancel = document.getElementById("cancel"), told = document.getElementById("told");
  var wrong = document.getElementById("wrong"), answer = document.getElementById("answer"), rows = document.getElementById("rows");
  var palette = ["#1b7fc4", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c564b"];
  var going = null, found = null, plot = null;
  var longest = 60; // characters of a cell that stay in one line; more have a box that scrolls
  var facets = document.getElementById("facets"), chips = document.getElementById("narrowed"), asking = null;
  // The address: the query (q), the order (sort, desc), filters (is., null., from. and below. with a column), the
  // columns whose values are listed (facet), and the name of a saved query (name).
  var state = new URLSearchParams(location.search), filter = /^(is|null|from|below)\.(.*)$/s;

  function element(name, attributes, text) {
    var made = document.createElement(name);
    Object.keys(attributes || {}).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    if (text !== undefined) { made.textContent = text; }
    return made;
  }
  function plain(text) { return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\ufffd"); }
  function query() { return state.toString(); }
  function changed(change) { var other = new URLSearchParams(state); change(other); return "?" + other; }
  function why(error) { return error.name === "AbortError" ? "the query was cancelled" : error.message; }
  function run(to) {
    if (!editor.value.trim() || going) { return; }
    // What was clicked belongs to the query that it was clicked in: another one begins anew.
    if (to) { state = to; } else if (editor.value.trim() !== (state.get("q") || "").trim()) { state = new URLSearchParams({ q: editor.value.trim() }); }
    var begun = performance.now();
    going = new AbortController();
    if (to) { history.pushState(null, "", "?" + query()); } else { history.replaceState(null, "", "?" + query()); }
    narrowed();
    ask.disabled = true; cancel.disabled = false; wrong.hidden = true; told.textContent = "asking …";
    fetch(form.dataset.rows + "?" + query(), { credentials: "same-origin", signal: going.signal })
      .then(function (response) {
        return response.ok ? response.json().then(show) : response.text().then(function (text) { throw new Error(text); });
      })
      .then(function () { told.textContent = found.rows.length.toLocaleString("en") + (found.more ? " rows shown of more" : found.rows.length === 1 ? " row" : " rows") + " in " + Math.round(performance.now() - begun) + " ms"; })
      .catch(function (error) { answer.hidden = true; facets.replaceChildren(); wrong.textContent = why(error); wrong.hidden = false; told.textContent = ""; })
      .then(function () { going = null; ask.disabled = false; cancel.disabled = true; });
  }
  function show(result) {
    found = result;
    var numeric = result.columns.map(function (_, at) { return result.rows.some(function (row) { return typeof row[at] === "number"; }); });
    var head = element("tr"), body = element("tbody");
    result.columns.forEach(function (name, at) { head.append(column(name, result.types[at], numeric[at])); });
    result.rows.forEach(function (row, number) {
      var line = element("tr");
      row.forEach(function (value, at) {
        var cell = element("td", numeric[at] ? { "class": "right" } : {});
        if (value === null) { cell.append(element("span", { "class": "quiet" }, "NULL")); }
        else if (typeof value === "number" && !Number.isInteger(value)) { cell.textContent = String(Number(value.toPrecision(6))); cell.title = value; }
        else { cell.textContent = plain(value); }
        if (result.links[at] && result.links[at][number]) { cell.title = cell.textContent; cell.replaceChildren(element("a", { href: result.links[at][number] }, cell.textContent)); }
        else if (cell.textContent.length > longest || cell.textContent.indexOf("\n") >= 0) { cell.replaceChildren(element("div", { "class": "much", tabindex: "0" }, cell.textContent)); }
        line.append(cell);
      });
      body.append(line);
    });
    var top = element("thead"); top.append(head);
    rows.replaceChildren(top, body);
    ["csv", "parquet"].forEach(function (name) { var link = document.getElementById(name); link.href = link.dataset.to + "?" + query(); });
    document.getElementById("share").href = "?" + query();
    answer.hidden = false;
    offer(numeric);
    list();
  }

  // -- sorting, filters, values --------------------------------------------------------------------------

  function column(name, type, numeric) {
    var cell = element("th", { scope: "col", title: type }), sorted = state.get("sort") === name, down = sorted && state.has("desc");
    if (numeric) { cell.className = "right"; }
    if (sorted) { cell.setAttribute("aria-sort", down ? "descending" : "ascending"); }
    var sort = element("a", { href: changed(function (to) {
      to.delete("sort"); to.delete("desc"); // up, down, as asked
      if (!down) { to.set("sort", name); }
      if (sorted && !down) { to.set("desc", "1"); }
    }) }, plain(name) + (down ? " ↓" : sorted ? " ↑" : ""));
    var values = element("a", { "class": "values", href: changed(function (to) { if (to.getAll("facet").indexOf(name) < 0) { to.append("facet", name); } }), "aria-label": "Values of " + plain(name), title: "Values" }, "≡");
    cell.append(sort, " ", values);
    return cell;
  }
  function narrowed() {
    var words = { is: " = ", "null": " is NULL", from: " ≥ ", below: " < " }, made = [];
    state.forEach(function (value, key) {
      var parts = filter.exec(key);
      if (!parts) { return; }
      var link = element("a", { "class": "tag", href: changed(function (to) { to.delete(key); }) }, plain(parts[2] + words[parts[1]] + value).slice(0, 80) + " ✕");
      link.setAttribute("aria-label", "Without the filter " + plain(parts[2] + words[parts[1]] + value));
      made.push(link, " ");
    });
    chips.replaceChildren.apply(chips, made.length ? ["Only rows with ", ...made] : []);
  }
  function list() {
    if (asking) { asking.abort(); }
    asking = new AbortController();
    var now = asking, wanted = state.getAll("facet").filter(function (name) { return found.columns.indexOf(name) >= 0; });
    Promise.all(wanted.map(function (name) {
      return fetch(form.dataset.values + "?" + query() + "&" + new URLSearchParams({ of: name }), { credentials: "same-origin", signal: now.signal })
        .then(function (response) { return response.text().then(function (text) {
          return response.ok ? new DOMParser().parseFromString(text, "text/html").body.firstElementChild : element("p", { "class": "trouble" }, text);
        }); });
    })).then(function (parts) { if (now === asking) { facets.replaceChildren.apply(facets, parts); } })
      .catch(function (error) { if (now === asking && error.name !== "AbortError") { wrong.textContent = error.message; wrong.hidden = false; } });
  }
  document.addEventListener("click", function (event) {
    var link = event.target.closest && event.target.closest("#answer a[href^='?'], #narrowed a");
    if (!link || link.id === "share" || event.ctrlKey || event.metaKey || event.shiftKey || event.button) { return; }
    event.preventDefault();
    if (going) { return; }
    var to = new URLSearchParams(link.getAttribute("href").slice(1));
    editor.value = to.get("q") || "";
    run(to);
  });
  window.addEventListener("popstate", function () { location.reload(); });

  // -- saved queries and links ----------------------------------------------------------------------------

  var saved = document.getElementById("saved"), name = document.getElementById("name");
  function kept() { try { return JSON.parse(localStorage.queries || "{}"); } catch (e) { return {}; } }
  function keep(all) {
    try { localStorage.queries = JSON.stringify(all); } catch (e) { told.textContent = "this browser keeps nothing: use the link"; return; }
    offered();
  }
  function offered() {
    var all = kept();
    saved.replaceChildren.apply(saved, Object.keys(all).sort().map(function (each) {
      var line = element("li"), drop = element("button", { type: "button", "class": "plain", "aria-label": "Forget " + plain(each) }, "✕");
      drop.addEventListener("click", function () { var rest = kept(); delete rest[each]; keep(rest); });
      line.append(element("a", { href: "?" + new URLSearchParams(String(all[each])) }, plain(each)), " ", drop);
      return line;
    }));
    saved.parentElement.hidden = !saved.children.length;
  }
  document.getElementById("save").addEventListener("submit", function (event) {
    event.preventDefault();
    if (!name.value.trim() || !editor.value.trim()) { return; }
    if (editor.value.trim() !== (state.get("q") || "").trim()) { state = new URLSearchParams({ q: editor.value.trim() }); }
    state.set("name", name.value.trim());
    history.replaceState(null, "", "?" + query());
    document.getElementById("share").href = "?" + query();
    var all = kept();
    all[name.value.trim()] = query();
    keep(all);
    told.textContent = "saved in this browser";
  });
  document.getElementById("share").addEventListener("click", function (event) {
    if (!navigator.clipboard) { return; } // then it is a link like others
    event.preventDefault();
    navigator.clipboard.writeText(new URL(event.target.href).href).then(function () { told.textContent = "the link is copied"; }, function () { location.assign(event.target.href); });
  });
  name.value = state.get("name") || "";
  offered();

  // -- the chart ---------------------------------------------------------------------------------------

  function time(at) { return /^(TIMESTAMP|DATE)/.test(found.types[at]); }
  function offer(numeric) {
    var usable = found.columns.map(function (_, at) { return numeric[at] || time(at); });
    function fill(name, allowed, chosen, none) {
      var select = document.getElementById(name);
      select.replaceChildren();
      if (none) { select.append(element("option", { value: "-1" }, "one line")); }
      found.columns.forEach(function (column, at) { if (allowed[at]) { select.append(element("option", { value: at }, column)); } });
      select.value = String(chosen);
    }
    var xs = usable.indexOf(true), ys = numeric.map(function (yes, at) { return yes && at !== xs ? at : -1; }).filter(function (at) { return at >= 0; });
    document.getElementById("chart").hidden = xs < 0 || !ys.length;
    if (xs < 0 || !ys.length) { return; }
    var texts = found.columns.map(function (_, at) { return !numeric[at] && !time(at); });
    fill("x", usable, xs); fill("y", numeric, ys[ys.length > 1 && /games|count/.test(found.columns[ys[0]]) ? 1 : 0]); fill("by", texts.map(function (yes, at) { return yes || numeric[at]; }), -1, true);
    draw();
  }
  function value(row, at) { return time(at) ? Date.parse(String(row[at]).replace(" ", "T") + "Z") / 1000 : row[at]; }
  function draw() {
    var where = document.getElementById("plot"), lines = document.getElementById("lines");
    if (plot) { plot.destroy(); plot = null; }
    lines.replaceChildren();
    if (!document.getElementById("chart").open || !found) { return; }
    var x = Number(document.getElementById("x").value), y = Number(document.getElementById("y").value), by = Number(document.getElementById("by").value);
    var groups = new Map();
    found.rows.forEach(function (row) {
      var name = by < 0 ? found.columns[y] : String(row[by]), at = value(row, x), up = row[y];
      if (typeof at !== "number" || !isFinite(at) || typeof up !== "number") { return; }
      if (!groups.has(name)) { groups.set(name, []); }
      groups.get(name).push([at, up]);
    });
    var names = Array.from(groups.keys()).slice(0, palette.length);
    if (!names.length) { return; }
    var data = uPlot.join(names.map(function (name) {
      var points = groups.get(name).sort(function (a, b) { return a[0] - b[0]; });
      return [points.map(function (point) { return point[0]; }), points.map(function (point) { return point[1]; })];
    }));
    var style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--quiet").trim(), grid = style.getPropertyValue("--grid").trim();
    var axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    plot = new uPlot({
      width: Math.max(280, where.clientWidth), height: 320, legend: { show: false }, scales: { x: { time: time(x) } },
      axes: [Object.assign({ label: found.columns[x] }, axis), Object.assign({ label: found.columns[y], size: 70 }, axis)],
      series: [{}].concat(names.map(function (name, place) { return { label: name, stroke: palette[place], width: 1.8, spanGaps: true }; }))
    }, data, where);
    names.forEach(function (name, place) {
      var line = element("span", { "class": "legend-line" }), mark = document.createElementNS("http://www.w3.org/2000/svg", "svg"), stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
      Object.entries({ x1: 0, x2: 22, y1: 4, y2: 4, stroke: palette[place], "stroke-width": 2.5 }).forEach(function (pair) { stroke.setAttribute(pair[0], pair[1]); });
      mark.append(stroke); line.append(mark, name); lines.append(line);
    });
  }

  form.addEventListener("submit", function (event) { event.preventDefault(); run(); });
  editor.addEventListener("keydown", function (event) { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
  cancel.addEventListener("click", function () { if (going) { going.abort(); } }); // the server ends a query that nobody waits for
  ["x", "y", "by"].forEach(function (name) { document.getElementById(name).addEventListener("change", draw); });
  document.getElementById("chart").addEventListener("toggle", draw);
  document.addEventListener("restyled", draw);
  // A file may take as long as rows, so it can be cancelled too; a small frame waits for it, and the page stays.
  ["csv", "parquet"].forEach(function (name) {
    var link = document.getElementById(name);
    link.addEventListener("click", function (event) {
      event.preventDefault();
      if (going) { return; }
      going = new AbortController();
      ask.disabled = true; cancel.disabled = false; wrong.hidden = true; told.textContent = "writing a file …";
      fetch(link.dataset.to + "?" + query(), { credentials: "same-origin", signal: going.signal })
        .then(function (response) {
          if (response.ok) { return response.blob(); }
          return response.text().then(function (text) {
            throw new Error(new DOMParser().parseFromString(text, "text/html").querySelector("[role=alert]").textContent);
          });
        })
        .then(function (blob) {
          var saved = element("a", { href: URL.createObjectURL(blob), download: "rows." + name });
          saved.click();
          setTimeout(function () { URL.revokeObjectURL(saved.href); }, 60000);
          told.textContent = "saved rows." + name;
        })
        .catch(function (error) { wrong.textContent = why(error); wrong.hidden = false; told.textContent = ""; })
        .then(function () { going = null; ask.disabled = false; cancel.disabled = true; });
    });
  });
  narrowed();
  if (form.dataset.own !== undefined) { run(); } // what another site wrote is asked by hand
})();
