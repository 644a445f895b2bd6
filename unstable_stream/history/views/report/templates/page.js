"use strict";
(function () {
  var root = document.documentElement;
  var plots = Array.prototype.slice.call(document.querySelectorAll(".plot"));
  var config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };

  function themed(figure) {
    var style = getComputedStyle(root);
    var ink = style.getPropertyValue("--ink").trim();
    var grid = style.getPropertyValue("--grid").trim();
    var page = style.getPropertyValue("--page").trim();
    var layout = Object.assign({}, figure.layout);
    layout.font = Object.assign({}, layout.font, { color: ink, family: getComputedStyle(document.body).fontFamily });
    layout.hoverlabel = Object.assign({}, layout.hoverlabel, { bgcolor: page, bordercolor: grid });
    layout.hoverlabel.font = Object.assign({}, layout.hoverlabel.font, { color: ink });
    layout.modebar = {
      bgcolor: "rgba(0,0,0,0)", color: style.getPropertyValue("--grid").trim(),
      activecolor: style.getPropertyValue("--quiet").trim()
    };
    ["xaxis", "yaxis"].forEach(function (axis) {
      layout[axis] = Object.assign({}, layout[axis], { gridcolor: grid, linecolor: grid, tickcolor: grid });
    });
    var data = figure.data.map(function (trace) {
      if (trace.type !== "heatmap") { return trace; }
      return Object.assign({}, trace, { colorscale: [trace.colorscale[0], [0.5, grid], trace.colorscale[2]] });
    });
    return { data: data, layout: layout };
  }

  function draw() {
    plots.forEach(function (plot) {
      var figure = themed(JSON.parse(document.getElementById(plot.dataset.figure).textContent));
      Plotly.react(plot, figure.data, figure.layout, config);
    });
  }

  var dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", function () {
    var now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    draw();
  });
  dark.addEventListener("change", draw);
  draw();
})();
