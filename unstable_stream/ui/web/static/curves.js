"use strict";
// The toolbar of the plots, and the buttons of each plot. What is chosen is in the address: a link shows the same view.
(function () {
  var bar = document.querySelector("[data-toolbar]"), place = document.querySelector("[data-charts]"), plots = window.plots;
  if (!bar || !place || !plots) { return; }
  var element = plots.element;
  var smoothing = bar.querySelector("[data-smoothing]"), log = bar.querySelector("[data-log]"), filter = bar.querySelector("[data-filter]");
  var shown = bar.querySelector("[data-shown]"), wrong = bar.querySelector("[data-wrong]"), link = bar.querySelector("[data-link]"), reset = bar.querySelector("[data-reset]");
  var longest = 200, mostMs = 1000; // of a regular expression: its length, and how long it may take
  var kept = ["smoothing", "log", "filter", "zoom", "hide", "pin"]; // of the address
  var pins = [], hides = []; // keys of plots; of lines that are hidden at first, the key and the name
  var matched = null; // by name, if the plots are filtered

  // -- the address ---------------------------------------------------------------------------------

  function restore() {
    var asked = new URLSearchParams(location.search), part = Number(asked.get("smoothing"));
    if (part > 0 && part <= Number(smoothing.max)) { smoothing.value = part; }
    log.checked = asked.get("log") === "1";
    filter.value = asked.get("filter") || "";
    asked.getAll("zoom").forEach(function (zoom) {
      var parts = zoom.split("~"), min = Number(parts[0]), max = Number(parts[1]);
      if (parts.length === 3 && isFinite(min) && isFinite(max) && min < max) { plots.zooms[parts[2]] = { min: min, max: max }; }
    });
    asked.getAll("hide").forEach(function (hide) { try { hides.push([].concat(JSON.parse(hide))); } catch (e) { /* no link of ours */ } });
    pins = asked.has("pin") ? asked.getAll("pin") : remembered();
  }
  function remembered() {
    try {
      var kept = JSON.parse(localStorage.pins || "[]");
      return Array.isArray(kept) ? kept.filter(function (key) { return typeof key === "string"; }) : [];
    } catch (e) { return []; /* no storage, or another program's */ }
  }
  function keep() {
    var address = new URL(location.href), asked = address.searchParams;
    kept.forEach(function (name) { asked.delete(name); });
    if (Number(smoothing.value)) { asked.set("smoothing", smoothing.value); }
    if (log.checked) { asked.set("log", "1"); }
    if (filter.value) { asked.set("filter", filter.value); }
    Object.keys(plots.zooms).forEach(function (axis) {
      var part = plots.zooms[axis];
      asked.append("zoom", [part.min, part.max, axis].join("~"));
    });
    Object.keys(plots.drawn).forEach(function (key) {
      var hidden = plots.drawn[key].hidden;
      Object.keys(hidden).forEach(function (name) { if (hidden[name]) { asked.append("hide", JSON.stringify([key, name])); } });
    });
    pins.forEach(function (key) { asked.append("pin", key); });
    history.replaceState(null, "", address);
    tell();
  }
  function tell() {
    link.href = location.href;
    reset.disabled = !Object.keys(plots.zooms).length;
    bar.querySelector("output").value = smoothing.value;
    place.querySelectorAll("a[data-csv]").forEach(function (save) { save.href = csv(save.dataset.csv); });
  }
  function csv(key) { return place.dataset.csv + "&" + new URLSearchParams({ by: plots.axis(), chart: key }); }

  // -- the buttons of a plot -------------------------------------------------------------------------

  function button(text, title, act) {
    var made = element("button", { type: "button", "aria-label": text + ": " + title }, [text]);
    made.addEventListener("click", act);
    return made;
  }
  function tools(key) {
    var one = plots.drawn[key], title = one.chart.title, at = pins.indexOf(key), made = [];
    var pin = button(at < 0 ? "Pin" : "Unpin", title, function () {
      if (at < 0) { pins.push(key); } else { pins.splice(at, 1); }
      arranged(key, 0);
    });
    made.push(pin);
    function move(text, to) {
      var other = button(text, title, function () { pins.splice(to, 0, pins.splice(at, 1)[0]); arranged(key, text); });
      other.disabled = to < 0 || to >= pins.length;
      made.push(other);
    }
    if (at >= 0) { move("Earlier", at - 1); move("Later", at + 1); }
    if (one.chart.kind === "line") { made.push(button("PNG", title, function () { picture(one); })); }
    made.push(element("a", { "data-csv": key, download: "", "aria-label": "CSV: " + title }, ["CSV"]));
    var held = one.figure.querySelector(".tools");
    if (held) { held.replaceChildren.apply(held, made); } else { one.figure.querySelector("figcaption").prepend(element("div", { "class": "tools" }, made)); }
  }
  function arranged(key) {
    var text = document.activeElement && document.activeElement.textContent;
    try { localStorage.pins = JSON.stringify(pins); } catch (e) { /* no storage: the address has them */ }
    plots.again();
    keep();
    // The plot has moved: the keyboard, and what is seen, go with it.
    var one = plots.drawn[key], buttons = Array.from(one.figure.querySelectorAll(".tools button:enabled"));
    (buttons.find(function (each) { return each.textContent === text; }) || buttons[0]).focus({ preventScroll: true });
    one.figure.scrollIntoView({ block: "nearest" });
  }
  function picture(one) {
    if (!one.plot) { return; }
    var source = one.plot.ctx.canvas, unit = source.width / one.plot.width, made = document.createElement("canvas"), pen = made.getContext("2d");
    var left = 12 * unit, line = 20 * unit, x = left, y = 2.6 * line, font = 13 * unit + "px system-ui, sans-serif";
    pen.font = font;
    var marks = one.chart.series.filter(function (series) { return !one.hidden[series.name]; }).map(function (series) {
      var wide = 34 * unit + pen.measureText(series.name).width;
      if (x > left && x + wide > source.width) { x = left; y += line; }
      x += wide;
      return { series: series, x: x - wide, y: y };
    });
    made.width = source.width; made.height = source.height + y + line / 2; // this takes the font away
    pen.fillStyle = plots.style("--page"); pen.fillRect(0, 0, made.width, made.height);
    pen.fillStyle = plots.style("--ink");
    pen.font = "600 " + 16 * unit + "px system-ui, sans-serif"; pen.fillText(one.chart.title, left, 1.3 * line);
    pen.font = font; pen.lineWidth = 2.5 * unit;
    marks.forEach(function (mark) {
      pen.strokeStyle = plots.palette[mark.series.colour % plots.palette.length];
      pen.setLineDash(plots.dashes[mark.series.dash % plots.dashes.length].map(function (part) { return part * unit; }));
      pen.beginPath(); pen.moveTo(mark.x, mark.y - 4 * unit); pen.lineTo(mark.x + 18 * unit, mark.y - 4 * unit); pen.stroke();
      pen.fillText(mark.series.name, mark.x + 23 * unit, mark.y);
    });
    pen.drawImage(source, 0, y + line / 2);
    made.toBlob(function (blob) {
      var saved = element("a", { href: URL.createObjectURL(blob), download: one.chart.key.replace(/[^A-Za-z0-9._-]+/g, "-") + ".png" });
      saved.click();
      setTimeout(function () { URL.revokeObjectURL(saved.href); }, 60000);
    });
  }

  // -- which plots are seen ------------------------------------------------------------------------------

  function arrange() {
    hides.splice(0).forEach(function (hide) { if (plots.drawn[hide[0]]) { plots.drawn[hide[0]].hidden[hide[1]] = true; } });
    Object.keys(plots.drawn).forEach(tools);
    var first = pins.filter(function (key) { return plots.drawn[key]; }).map(function (key) { return plots.drawn[key].figure; });
    if (first.length) {
      var charts = element("div", { "class": "charts" }, first);
      place.prepend(element("details", { "class": "chartsection", id: "pinned", open: "" }, [element("summary", {}, ["Pinned"]), charts]));
    }
    sift();
    match();
    tell();
  }
  function titles() { return Array.from(new Set(Object.values(plots.drawn).map(function (one) { return one.chart.title; }))); }
  function sift() {
    var all = Object.values(plots.drawn), seen = 0;
    all.forEach(function (one) { one.figure.hidden = Boolean(matched) && matched[one.chart.title] === false; seen += one.figure.hidden ? 0 : 1; });
    place.querySelectorAll(".chartsection").forEach(function (section) {
      var some = section.querySelector("figure:not([hidden])") !== null;
      section.hidden = !some;
      // What was found is not left in a closed section.
      if (matched && some && !section.open) { section.open = true; section.dataset.opened = ""; }
      if (!matched && section.dataset.opened !== undefined) { section.open = false; delete section.dataset.opened; }
    });
    shown.textContent = matched ? seen + " of " + all.length + " plots" : "";
  }
  function say(text) { wrong.textContent = text; wrong.hidden = !text; filter.setAttribute("aria-invalid", String(Boolean(text))); }
  function matches(found) { matched = found; sift(); }

  var worker = null, late = 0, tried = null;
  function match() {
    var pattern = filter.value, names = titles(), asked = JSON.stringify([pattern, names]);
    if (asked === tried) { return; }
    tried = asked;
    if (worker) { worker.terminate(); worker = null; clearTimeout(late); }
    say("");
    if (!pattern) { matches(null); return; }
    if (pattern.length > longest) { say("At most " + longest + " characters: all plots are shown."); matches(null); return; }
    try { new RegExp(pattern, "i"); } catch (error) { say(error.message + ": all plots are shown."); matches(null); return; }
    // Some expressions take years on some names, and cannot be told by their looks: another thread tries them.
    var own = worker = new Worker("/static/matcher.js");
    function end() { own.terminate(); clearTimeout(late); if (worker === own) { worker = null; } }
    own.onmessage = function (event) {
      if (event.data === "ready") {
        late = setTimeout(function () { end(); say("This expression takes too long: all plots are shown."); matches(null); }, mostMs);
        own.postMessage({ pattern: pattern, names: names });
        return;
      }
      end();
      var found = Object.create(null);
      names.forEach(function (name, at) { found[name] = event.data[at]; });
      matches(found);
    };
    own.onerror = function () { end(); say("The expression could not be tried: all plots are shown."); matches(null); };
  }

  var typed = 0;
  filter.addEventListener("input", function () { clearTimeout(typed); typed = setTimeout(function () { match(); keep(); }, 150); });
  filter.addEventListener("keydown", function (event) { if (event.key === "Enter") { event.preventDefault(); } }); // no form is sent
  smoothing.addEventListener("input", function () { bar.querySelector("output").value = smoothing.value; });
  smoothing.addEventListener("change", keep);
  log.addEventListener("change", keep);
  bar.querySelectorAll("[data-axis]").forEach(function (radio) { radio.addEventListener("change", keep); });
  reset.addEventListener("click", function () { Object.keys(plots.zooms).forEach(function (axis) { plots.zoomTo(axis, null); }); });
  link.addEventListener("click", function (event) {
    if (!navigator.clipboard) { return; } // not by https: the browser's own menu copies it
    event.preventDefault();
    navigator.clipboard.writeText(link.href).then(function () { shown.textContent = "The link is copied."; }, function () { shown.textContent = "It is in the address bar."; });
  });
  document.addEventListener("viewed", keep);
  // Whoever chooses other runs keeps the view.
  var choice = document.getElementById("choice");
  if (choice) { choice.addEventListener("formdata", function (event) { new URLSearchParams(location.search).forEach(function (value, name) { if (kept.indexOf(name) >= 0) { event.formData.append(name, value); } }); }); }
  document.addEventListener("laid", arrange);
  restore();
  tell();
})();
