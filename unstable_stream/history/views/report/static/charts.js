"use strict";
// Draw charts from numbers, which the page holds or the server sends: lines with uPlot, ladders and matrices as tables.
(function () {
  var place = document.querySelector("[data-charts]");
  if (!place) { return; }
  // After Okabe and Ito (2008), so that the colour-blind tell them apart.
  var palette = ["#1b7fc4", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c564b"];
  var dashes = [[], [8, 5], [2, 4], [8, 4, 2, 4], [14, 6]];
  var svgNS = "http://www.w3.org/2000/svg";
  var drawn = Object.create(null); // key to {figure, chart, plot, hidden: names of lines}
  var zooms = Object.create(null); // horizontal axis to the part of it that a person has chosen, {min, max}
  var parts = [1, 2, 3, 4]; // of a line: itself, the ends of its band, and what it is the smoothed line of
  var seen = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) { if (entry.isIntersecting) { draw(entry.target.dataset.key); } });
  }, { rootMargin: "300px" });
  var resized = new ResizeObserver(function (entries) {
    entries.forEach(function (entry) {
      var one = drawn[entry.target.dataset.key];
      if (one && one.plot && entry.contentRect.width > 0) { one.plot.setSize({ width: Math.floor(entry.contentRect.width), height: heightOf(one.chart) }); }
    });
  });

  function element(name, attributes, children) {
    var made = document.createElement(name);
    Object.keys(attributes || {}).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    (children || []).forEach(function (child) { made.append(child); });
    return made;
  }
  function style(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function heightOf(chart) { return chart.wide ? 320 : 250; }
  function written(value, percent) {
    if (value === null || value === undefined) { return "–"; }
    if (percent) { return (100 * value).toFixed(1) + " %"; }
    if (Number.isInteger(value)) { return value.toLocaleString("en"); }
    var size = Math.abs(value);
    return size >= 1e3 ? Math.round(value).toLocaleString("en") : size >= 1e-3 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  }
  function rgba(code, opacity) {
    return "rgba(" + [1, 3, 5].map(function (at) { return parseInt(code.slice(at, at + 2), 16); }).join(",") + "," + opacity + ")";
  }

  function figure(chart) {
    var made = element("figure", { "data-key": chart.key, "aria-label": chart.title });
    if (chart.wide) { made.className = "wide"; }
    made.append(element("figcaption", {}, [element("h3", {}, [chart.title]), element("p", {}, [chart.says])]));
    var body = element("div", { "class": chart.kind === "line" ? "u-plot" : "scroll", "data-key": chart.key });
    made.append(body);
    var numbers = element("details", { "class": "numbers" }, [element("summary", {}, ["Numbers"])]);
    numbers.addEventListener("toggle", function () {
      while (numbers.children.length > 1) { numbers.lastChild.remove(); }
      if (numbers.open) { numbers.append(table(drawn[chart.key].chart)); }
    });
    if (chart.kind === "line") { made.append(element("div", { "class": "legend" }), numbers); } else { body.tabIndex = 0; body.before(element("ul", { "class": "told" })); }
    return made;
  }

  function table(chart) {
    var several = chart.series.length > 1, bounds = chart.series.some(function (one) { return one.low; }), counts = chart.series.some(function (one) { return one.counts; });
    var names = (several ? ["line"] : []).concat([chart.x_title, chart.y_title || "value"], bounds ? ["from", "to"] : [], counts ? ["games"] : []);
    var body = element("tbody");
    chart.series.forEach(function (one) {
      one.x.forEach(function (x, at) {
        var cells = (several ? [one.name] : []).concat([written(x), written(one.y[at], chart.percent)], bounds ? [written(one.low ? one.low[at] : null, chart.percent), written(one.high ? one.high[at] : null, chart.percent)] : [], counts ? [one.counts ? written(one.counts[at]) : ""] : []);
        body.append(element("tr", {}, cells.map(function (cell) { return element("td", {}, [cell]); })));
      });
    });
    var head = element("thead", {}, [element("tr", {}, names.map(function (name) { return element("th", { scope: "col" }, [name]); }))]);
    return element("div", { "class": "scroll", tabindex: "0" }, [element("table", {}, [head, body])]);
  }

  // -- lines -----------------------------------------------------------------------------------------

  // Updates are counted: there is nothing between two of them.
  var wholeSteps = [];
  for (var ten = 1; ten < 1e12; ten *= 10) { wholeSteps.push(ten, 2 * ten, 5 * ten); }
  function counted(chart) { return chart.series.every(function (one) { return one.x.every(Number.isInteger); }); }
  function smoothing() { var chosen = document.querySelector("[data-smoothing]"); return chosen ? Number(chosen.value) : 0; }
  // The mean of a point and those before it, whose weights fall by this factor from each to the one before.
  function smooth(values) {
    var factor = smoothing(), sum = 0, weight = 0;
    return values.map(function (value) {
      if (value === null) { return null; }
      sum = factor * sum + value;
      weight = factor * weight + 1;
      return sum / weight;
    });
  }
  // The least number that a logarithmic axis can show, if that is asked for and there is one; else 0.
  function floorOf(chart) {
    if (!document.querySelector("[data-log]:checked")) { return 0; }
    var least = Infinity;
    chart.series.forEach(function (one) { [one.y, one.low, one.high].forEach(function (values) { (values || []).forEach(function (value) { if (value > 0 && value < least) { least = value; } }); }); });
    return least === Infinity ? 0 : least;
  }
  function joined(chart) {
    var floor = floorOf(chart), raw = smoothing() > 0;
    function placed(values, instead) { return floor ? values.map(function (value) { return value === null || value > 0 ? value : instead; }) : values; }
    return uPlot.join(chart.series.map(function (one) {
      var none = one.x.map(function () { return null; });
      return [one.x, placed(smooth(one.y), null), one.low ? placed(one.low, floor) : none, one.high ? placed(one.high, null) : none, raw ? placed(one.y, null) : none];
    }));
  }
  // Updates are drawn along one axis, whether the learner reports or a checkpoint plays.
  function axisOf(chart) { return chart.x_title === "policy version (learner updates so far)" ? "learner update" : chart.x_title; }
  function options(chart, width, legend) {
    var ink = style("--quiet"), grid = style("--grid");
    var axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
    var series = [{}], bands = [], floor = floorOf(chart), edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    chart.series.forEach(function (one, place) {
      var colour = palette[one.colour % palette.length];
      var few = one.x.length < 60;
      series.push({ label: one.name, stroke: colour, width: 1.8, dash: dashes[one.dash % dashes.length], spanGaps: true, points: { show: few, size: 5 } });
      series.push(Object.assign({}, edge), Object.assign({}, edge), { stroke: rgba(colour, 0.35), width: 1.2, points: { show: false }, spanGaps: true });
      bands.push({ series: [4 * place + 3, 4 * place + 2], fill: rgba(colour, 0.16) });
    });
    return {
      width: width, height: heightOf(chart), series: series, bands: bands, legend: { show: false },
      cursor: { sync: { key: axisOf(chart) }, drag: { x: true, y: false }, points: { size: 7 } },
      scales: { x: { time: false, range: function (plot, low, high) { return low === high ? [low - 1, high + 1] : [low, high]; } }, y: { distr: floor ? 3 : 1, range: function (plot, low, high) {
        if (floor) { // so wide that two numbers stand at the axis
          low = low > 0 ? low : floor; high = Math.max(high || 0, 2.5 * low);
          var more = Math.pow(high / low, 0.06);
          return [low / more, chart.percent ? Math.min(1.1, high * more) : high * more];
        }
        if (low === null || low === undefined) { return [0, 1]; }
        if (chart.percent || chart.from_zero) { low = Math.min(0, low); }
        if (chart.percent) { high = Math.max(high, 0.1); }
        var room = (high - low || Math.abs(high) || 1) * 0.06;
        return [chart.percent || chart.from_zero ? low : low - room, chart.percent ? Math.min(1.02, high + room) : high + room];
      } } },
      axes: [
        Object.assign({ label: chart.x_title, labelSize: 20, size: 34 }, counted(chart) ? { incrs: wholeSteps } : {}, axis),
        Object.assign({ label: chart.y_title || undefined, labelSize: 20, size: 58, values: function (plot, ticks) { return ticks.map(function (tick) { return tick === null ? "" : chart.percent ? Number((100 * tick).toPrecision(3)) + " %" : written(tick); }); } }, axis)
      ],
      hooks: { setScale: [function (plot, name) {
        if (name !== "x") { return; } // the figure tells what part of how much it shows
        var xs = plot.data[0], told = legend.closest("figure").dataset;
        told.from = plot.scales.x.min; told.to = plot.scales.x.max; told.last = xs[xs.length - 1];
      }], setData: [function (plot) { legend.closest("figure").dataset.last = plot.data[0][plot.data[0].length - 1]; }], setCursor: [function (plot) {
        chart.series.forEach(function (one, place) {
          var shown = legend.children[place].querySelector("b");
          var at = plot.cursor.idx, values = plot.data[4 * place + 1];
          while (at !== null && at !== undefined && at > 0 && (values[at] === undefined || values[at] === null)) { at -= 1; }
          shown.textContent = at === null || at === undefined ? written(one.y[one.y.length - 1], chart.percent) : written(values[at], chart.percent);
        });
      }] }
    };
  }
  // The games behind the point of a line that is nearest to the pointer: those trained on in its update, or played by its
  // checkpoint. A report, which has no list of games, says how to find them.
  function openGames(one, at, top) {
    var plot = one.plot, by = { "learner update": "update", "policy version (learner updates so far)": "model" }[one.chart.x_title];
    if (!by || at === null || at === undefined || !Number.isInteger(plot.data[0][at])) { return; }
    var apart = one.chart.series.map(function (series, number) {
      var y = plot.data[4 * number + 1][at];
      return y === null || y === undefined || one.hidden[series.name] ? Infinity : Math.abs(plot.valToPos(y, "y") - top);
    });
    var least = Math.min.apply(null, apart);
    if (least === Infinity) { return; }
    var nearest = one.chart.series[apart.indexOf(least)];
    var run = place.dataset.runs.split(" ")[nearest.run], wanted = by === "update" ? plot.data[0][at] : "ckpt-*" + String(plot.data[0][at]).padStart(6, "0");
    if (place.dataset.games) { location.href = place.dataset.games + "?" + new URLSearchParams([["run", run], [by, wanted]]); return; }
    var told = one.figure.querySelector(".games") || element("p", { "class": "games" });
    told.replaceChildren("The games behind this point: ", element("code", {}, ["unstable-stream games --run " + run + " --" + by + " '" + wanted + "'"]));
    one.figure.querySelector(".legend").after(told);
  }
  function legend(one) {
    var chart = one.chart, where = one.figure.querySelector(".legend");
    where.replaceChildren.apply(where, chart.series.map(function (series, place) {
      var mark = document.createElementNS(svgNS, "svg"), stroke = document.createElementNS(svgNS, "line");
      Object.entries({ x1: 0, x2: 22, y1: 4, y2: 4, stroke: palette[series.colour % palette.length], "stroke-width": 2.5, "stroke-dasharray": dashes[series.dash % dashes.length].join(" ") }).forEach(function (pair) { stroke.setAttribute(pair[0], pair[1]); });
      mark.setAttribute("aria-hidden", "true");
      mark.append(stroke);
      var button = element("button", { type: "button", "class": "legend-line", "aria-pressed": String(!one.hidden[series.name]), title: "Show or hide this line" }, [mark, element("span", {}, [series.name]), element("b", {}, [written(series.y[series.y.length - 1], chart.percent)])]);
      button.addEventListener("click", function () {
        var on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        one.hidden[series.name] = !on;
        document.dispatchEvent(new Event("viewed"));
        parts.forEach(function (part) { one.plot.setSeries(4 * place + part, { show: on }); });
      });
      return button;
    }));
    return where;
  }
  function draw(key) {
    var one = drawn[key];
    if (!one || one.plot || one.chart.kind !== "line") { return; }
    var body = one.figure.querySelector(".u-plot");
    if (!body.clientWidth) { return; }
    one.plot = new uPlot(options(one.chart, body.clientWidth, legend(one)), joined(one.chart), body);
    one.chart.series.forEach(function (series, place) {
      if (one.hidden[series.name]) { parts.forEach(function (part) { one.plot.setSeries(4 * place + part, { show: false }); }); }
    });
    // A click, and neither the end of a zoom nor the first half of a double click.
    var pressedAt = null, soon = null;
    one.plot.over.addEventListener("mousedown", function (event) { pressedAt = event.clientX; clearTimeout(soon); });
    one.plot.over.addEventListener("click", function (event) { if (pressedAt === event.clientX && event.detail < 2) { soon = setTimeout(openGames, 300, one, one.plot.cursor.idx, one.plot.cursor.top); } });
    one.plot.root.setAttribute("role", "img");
    one.plot.root.setAttribute("aria-label", one.chart.title + ". " + one.chart.says + " The numbers are in the table below.");
    one.plot.over.addEventListener("mousedown", function () { held = one; });
    one.plot.over.addEventListener("dblclick", function () { zoomTo(axisOf(one.chart), null); });
    if (zooms[axisOf(one.chart)]) { one.plot.setScale("x", zooms[axisOf(one.chart)]); }
    tellOfNone(one);
    one.figure.dataset.drawn = "";
    resized.observe(body);
  }

  function tellOfNone(one) {
    var told = one.figure.querySelector(".none"), logarithmic = document.querySelector("[data-log]:checked");
    var none = logarithmic ? one.chart.series.reduce(function (sum, series) { return sum + series.y.filter(function (y) { return y !== null && y <= 0; }).length; }, 0) : 0;
    if (told) { told.remove(); }
    if (none) { one.figure.querySelector(".legend").after(element("p", { "class": "none" }, [floorOf(one.chart) ? none + (none === 1 ? " point" : " points") + " at zero or below: a logarithmic axis has no place for them." : "No number above zero: the axis is not logarithmic."])); }
  }
  // The part that a person drags over is shown by all plots along this axis, also by those that are not drawn yet.
  var held = null;
  document.addEventListener("mouseup", function () {
    var one = held, plot = one && one.plot;
    held = null;
    if (!plot || !plot.select.width) { return; }
    var ends = [plot.select.left, plot.select.left + plot.select.width].map(function (left) { return Number(plot.posToVal(left, "x").toPrecision(6)); }); // as short as an address has it
    if (ends[0] < ends[1]) { setTimeout(zoomTo, 0, axisOf(one.chart), { min: ends[0], max: ends[1] }); } // after the plot's own
  }, true);
  function zoomTo(axis, part) {
    if (part) { zooms[axis] = part; } else { delete zooms[axis]; }
    Object.values(drawn).forEach(function (one) { if (one.plot && axisOf(one.chart) === axis) { refill(one); } });
    document.dispatchEvent(new Event("viewed"));
  }
  function refill(one) {
    var part = zooms[axisOf(one.chart)];
    one.plot.setData(joined(one.chart), !part);
    if (part) { one.plot.setScale("x", part); }
  }

  // -- ladders and matrices -----------------------------------------------------------------------------

  // A player, marked if it is no checkpoint.
  function player(name, kind) { return kind ? [name, " ", element("span", { "class": "tag" }, [kind])] : [name]; }
  function ladder(chart) {
    var one = chart.series[0], more = Object.keys(chart.more);
    var digits = chart.x_title.indexOf("Elo") === 0 ? 0 : 1;
    function rating(value) { return value.toFixed(digits); }
    var low = Math.min.apply(null, one.low), high = Math.max.apply(null, one.high), width = high - low || 1;
    var body = element("tbody");
    for (var at = one.x.length - 1; at >= 0; at -= 1) {
      var bar = document.createElementNS(svgNS, "svg"), line = document.createElementNS(svgNS, "line"), dot = document.createElementNS(svgNS, "rect");
      bar.setAttribute("viewBox", "0 0 100 14"); bar.setAttribute("preserveAspectRatio", "none"); bar.setAttribute("aria-hidden", "true");
      Object.entries({ x1: 100 * (one.low[at] - low) / width, x2: 100 * (one.high[at] - low) / width, y1: 7, y2: 7 }).forEach(function (pair) { line.setAttribute(pair[0], pair[1]); });
      Object.entries({ x: 100 * (one.y[at] - low) / width - 0.3, y: 2, width: 0.6, height: 10 }).forEach(function (pair) { dot.setAttribute(pair[0], pair[1]); });
      bar.append(line, dot);
      var cells = [element("th", { scope: "row" }, player(one.x[at], chart.kinds[one.x[at]])), element("td", {}, [bar])];
      [rating(one.y[at]), rating(one.low[at]) + " to " + rating(one.high[at])].concat(more.map(function (title) { return chart.more[title][at]; }), [one.counts ? written(one.counts[at]) : ""]).forEach(function (text) { cells.push(element("td", {}, [text])); });
      body.append(element("tr", {}, cells));
    }
    var head = element("thead", {}, [element("tr", {}, ["player", "", chart.x_title, chart.y_title].concat(more, ["games"]).map(function (name) { return element("th", { scope: "col" }, [name]); }))]);
    return element("table", { "class": "ladder" }, [head, body]);
  }
  function matrix(chart) {
    var of = chart.matrix, names = of.names;
    var head = element("tr", {}, [element("th", {}, ["player \\ against"])].concat(names.map(function (name) { return element("th", { scope: "col" }, [name]); })));
    var body = element("tbody", {}, names.map(function (name, row) {
      return element("tr", {}, [element("th", { scope: "row" }, player(name, chart.kinds[name]))].concat(of.values[row].map(function (value, column) {
        if (value === null) { return element("td", {}, [""]); }
        var bounds = of.bounds[row][column], text = Math.round(100 * value) + "", sure = bounds[0] > 0.5 || bounds[1] < 0.5;
        var title = name + " against " + names[column] + ": " + written(value, true) + " of " + of.games[row][column] + " games, 95 % interval " + written(bounds[0], true) + " to " + written(bounds[1], true);
        return element("td", { "class": "m" + Math.round(10 * value), title: title }, [sure ? element("b", {}, [text]) : text]);
      })));
    }));
    return element("table", { "class": "matrix" }, [element("thead", {}, [head]), body]);
  }

  // -- the whole -----------------------------------------------------------------------------------------

  function show(chart) {
    var one = drawn[chart.key], before = one.chart;
    one.chart = chart;
    if (chart.kind === "line") {
      if (!one.plot) { return; }
      var same = before.x_title === chart.x_title && floorOf(before) > 0 === floorOf(chart) > 0 && JSON.stringify(before.series.map(looks)) === JSON.stringify(chart.series.map(looks));
      if (same) { refill(one); legend(one); tellOfNone(one); }
      else { one.plot.destroy(); one.plot = null; draw(chart.key); }
    } else {
      one.figure.querySelector(".scroll").replaceChildren(chart.kind === "matrix" ? matrix(chart) : ladder(chart));
      var told = one.figure.querySelector(".told");
      told.hidden = !chart.told.length;
      told.replaceChildren.apply(told, chart.told.map(function (line) { return element("li", {}, [line]); }));
    }
  }
  function looks(series) { return [series.name, series.colour, series.dash]; }
  function lay(found) {
    var keys = [];
    function section(one, open, number) {
      var charts = element("div", { "class": "charts" });
      one.charts.forEach(function (chart) {
        keys.push(chart.key);
        var known = drawn[chart.key];
        if (!known) {
          known = drawn[chart.key] = { figure: figure(chart), chart: chart, plot: null, hidden: Object.create(null) };
          seen.observe(known.figure);
        }
        charts.append(known.figure);
        show(chart);
      });
      var made = element("details", { "class": "chartsection", id: "section-" + number }, [element("summary", {}, [one.title]), element("p", {}, [one.says]), charts]);
      made.open = open;
      return made;
    }
    var open = {};
    place.querySelectorAll(".chartsection").forEach(function (one) { open[one.querySelector("summary").textContent] = one.open; });
    var sections = found.sections.map(function (one, at) { return section(one, open[one.title] !== false, at + 1); })
      .concat(found.metrics.map(function (one, at) { return section(one, open[one.title] === true, found.sections.length + at + 1); }));
    place.replaceChildren.apply(place, sections.length ? sections : [element("p", { "class": "quiet" }, ["There is nothing to draw yet."])]);
    Object.keys(drawn).forEach(function (key) { if (keys.indexOf(key) < 0) { if (drawn[key].plot) { drawn[key].plot.destroy(); } delete drawn[key]; } });
    layout = names(found);
    latest = found;
    document.dispatchEvent(new Event("laid"));
  }
  function names(found) { return JSON.stringify([found.sections, found.metrics].map(function (part) { return part.map(function (one) { return [one.title, one.charts.map(function (chart) { return chart.key; })]; }); })); }
  var layout = "", latest = null;

  function axis() { var chosen = document.querySelector("[data-axis]:checked"); return chosen ? chosen.value : "updates"; }
  function load() {
    var held = document.getElementById("numbers");
    if (held) { return Promise.resolve(lay(JSON.parse(held.textContent))); }
    return fetch(place.dataset.charts + (place.dataset.charts.indexOf("?") < 0 ? "?" : "&") + "by=" + axis(), { credentials: "same-origin" })
      .then(function (answer) { if (!answer.ok) { throw new Error(answer.status); } return answer.json(); })
      .then(function (found) {
        if (names(found) !== layout) { lay(found); return; }
        found.sections.concat(found.metrics).forEach(function (section) { section.charts.forEach(show); });
      })
      .catch(function () { /* the archive was busy: the next change tries again */ });
  }
  function redraw() {
    Object.keys(drawn).forEach(function (key) {
      var one = drawn[key];
      if (one.plot) { one.plot.destroy(); one.plot = null; draw(key); }
    });
  }
  document.addEventListener("refreshed", load);
  document.addEventListener("restyled", redraw);
  addEventListener("beforeprint", function () { Object.keys(drawn).forEach(draw); });
  document.querySelectorAll("[data-smoothing]").forEach(function (slider) { slider.addEventListener("input", function () { Object.values(drawn).forEach(function (one) { if (one.plot) { refill(one); } }); }); });
  document.querySelectorAll("[data-log]").forEach(function (box) { box.addEventListener("change", redraw); });
  document.querySelectorAll("[data-axis]").forEach(function (radio) {
    radio.addEventListener("change", function () {
      var address = new URL(location.href);
      address.searchParams.set("by", axis());
      history.replaceState(null, "", address);
      Object.keys(zooms).forEach(function (one) { zoomTo(one, null); }); // they are of the other axis
      load().then(redraw);
    });
  });
  place.addEventListener("toggle", function (event) {
    if (event.target.open) { event.target.querySelectorAll("figure").forEach(function (one) { draw(one.dataset.key); }); }
  }, true);
  // What more a page offers is in scripts of its own.
  window.plots = { drawn: drawn, zooms: zooms, zoomTo: zoomTo, axis: axis, element: element, palette: palette, dashes: dashes, style: style, again: function () { if (latest) { lay(latest); } } };
  load();
})();
