"use strict";
// Zoom the graph of causes and effects: buttons, keys and the wheel; drag to move it. It begins as large as fits and can be read.
(function () {
  var frame = document.querySelector(".graph"), svg = frame && frame.querySelector("svg");
  if (!svg) { return; }
  var width = svg.viewBox.baseVal.width, height = svg.viewBox.baseVal.height, leastText = 0.7, scale = 1;

  function whole() { return Math.min(1, frame.clientWidth / width, parseFloat(getComputedStyle(frame).maxHeight) / height || 1); }
  function size() { svg.style.width = width * scale + "px"; svg.style.height = height * scale + "px"; }
  function zoom(to, x, y) { // what is at x, y of the frame stays there
    var before = scale;
    x = x === undefined ? frame.clientWidth / 2 : x;
    y = y === undefined ? frame.clientHeight / 2 : y;
    var left = (frame.scrollLeft + x) / before, top = (frame.scrollTop + y) / before;
    scale = Math.max(0.15, Math.min(3, to));
    size();
    frame.scrollLeft = left * scale - x;
    frame.scrollTop = top * scale - y;
    frame.dataset.scale = scale.toFixed(2);
  }
  function by(name) { zoom(name === "fit" ? whole() : scale * (name === "in" ? 1.25 : 0.8)); }
  var keys = { "+": "in", "=": "in", "-": "out", "0": "fit" };

  document.querySelector(".zoom").hidden = false;
  document.querySelectorAll("[data-zoom]").forEach(function (button) { button.addEventListener("click", function () { by(button.dataset.zoom); }); });
  frame.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) { return; }
    event.preventDefault();
    by(keys[event.key]);
  });
  frame.addEventListener("wheel", function (event) {
    if (!event.ctrlKey && !frame.contains(document.activeElement)) { return; } // the page scrolls on
    event.preventDefault();
    var box = frame.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  frame.addEventListener("pointerdown", function (event) {
    if (event.pointerType !== "mouse" || event.button || event.target.closest("a")) { return; }
    frame.setPointerCapture(event.pointerId);
    function move(to) { frame.scrollLeft -= to.movementX; frame.scrollTop -= to.movementY; }
    frame.addEventListener("pointermove", move);
    frame.addEventListener("pointerup", function () { frame.removeEventListener("pointermove", move); }, { once: true });
  });

  zoom(Math.max(whole(), leastText));
  // One that does not fit begins with what was asked for, not with its farthest cause.
  var root = frame.querySelector(".root").getBoundingClientRect(), box = frame.getBoundingClientRect();
  frame.scrollLeft += root.left + root.width / 2 - box.left - box.width / 2;
  frame.scrollTop += root.top + root.height / 2 - box.top - box.height / 2;
})();
