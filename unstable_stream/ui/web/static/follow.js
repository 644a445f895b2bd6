"use strict";
// Follow what goes on without this page: ask for the page again and replace its parts, never a field or the page itself,
// so that what a person has typed, and where the keyboard is, stay.
(function () {
  var state = document.querySelector("[data-going]");
  if (!state) { return; }
  var wrong = document.getElementById("wrong"), form = document.getElementById("move"), giveUp = document.getElementById("give-up");
  var field = form && form.querySelector("input[name=action]");
  var soonMs = 300, laterMs = 2000; // between two answers; after a server that did not answer
  var waiting = null, asking = false, sending = false;

  function going() { return state.dataset.going === "yes"; }
  function yours() { return state.dataset.state === "yours"; }
  function say(text) { wrong.textContent = text; wrong.hidden = !text; }
  function alertOf(text) {
    var found = new DOMParser().parseFromString(text, "text/html").querySelector("[role=alert]");
    return found ? found.textContent : text;
  }

  function take(text) {
    var fresh = new DOMParser().parseFromString(text, "text/html");
    taken = Date.now();
    document.querySelectorAll("[data-part]").forEach(function (part) {
      var other = fresh.getElementById(part.id);
      if (!other) { return; }
      Object.assign(part.dataset, other.dataset);
      if (part.innerHTML !== other.innerHTML) { part.replaceChildren.apply(part, Array.from(other.childNodes)); }
    });
    document.title = fresh.title || document.title;
    path = [];
    permit();
    // A button that was pressed is gone with its part: the keyboard goes back to the field.
    if (field && yours() && document.activeElement === document.body) { field.focus(); }
  }
  function permit() {
    if (!form) { return; }
    var over = !going() && !yours();
    form.hidden = giveUp.hidden = over;
    document.querySelectorAll("#move button, #give-up button, #offers button").forEach(function (button) { button.disabled = sending || !yours(); });
    mark();
  }
  function get(query) {
    return fetch((state.dataset.from || location.pathname) + query, { credentials: "same-origin" }).then(function (answer) {
      return answer.text().then(function (text) {
        if (answer.ok) { take(text); return; }
        if (answer.status === 503) { throw new Error(text); } // busy: once more later
        state.dataset.going = "no";
        state.dataset.state = "failed";
        say(alertOf(text));
        permit();
      });
    });
  }
  function follow() {
    clearTimeout(waiting);
    if (asking || !going()) { return; }
    asking = true;
    get("").then(function () { return soonMs; }, function () { return laterMs; })
      .then(function (ms) { asking = false; waiting = setTimeout(follow, ms); });
  }

  // The server's clock counts; this one shows it, and asks when the time is over.
  var taken = Date.now();
  function tick() {
    var shown = document.querySelector("#clock [data-left]");
    if (!shown || !yours()) { return; }
    var left = Math.max(0, shown.dataset.left - (Date.now() - taken) / 1000);
    shown.textContent = Math.floor(left / 60) + ":" + String(Math.floor(left % 60)).padStart(2, "0");
    if (left > 0 || asking || sending) { return; }
    asking = true;
    get("?now=1").catch(function () { /* asked again */ }).then(function () { asking = false; follow(); });
  }
  if (document.getElementById("clock")) { setInterval(tick, 250); }

  function send(address, action) {
    if (sending) { return; }
    sending = true;
    say("");
    permit();
    fetch(address, { method: "POST", body: new URLSearchParams(action === null ? {} : { action: action }), credentials: "same-origin", redirect: "manual" })
      .then(function (answer) {
        if (answer.type === "opaqueredirect") { // it was taken
          if (action !== null && field.value === action) { field.value = ""; }
          return null;
        }
        return answer.text().then(function (text) { say(alertOf(text)); });
      })
      .catch(function () { say("The server did not answer: send it again."); })
      .then(function () { return get("?now=1").catch(function () { /* the next answer tells */ }); })
      .then(function () { sending = false; permit(); follow(); });
  }
  // A click on a cell plays the move that names it; of a move between two cells the first is chosen, then the second.
  var path = [];
  function mark() {
    var buttons = Array.from(document.querySelectorAll("#offers button[data-cells]"));
    var open = buttons.map(function (button) { return button.dataset.cells.split(" "); }).filter(function (cells) { return path.every(function (cell, at) { return cells[at] === cell; }); });
    document.querySelectorAll("#board [data-cell]").forEach(function (cell) {
      var name = cell.dataset.cell;
      cell.classList.toggle("legal", yours() && !sending && open.some(function (cells) { return cells[path.length] === name; }));
      cell.classList.toggle("chosen", path.indexOf(name) >= 0);
    });
    return buttons;
  }
  function click(event) {
    var cell = event.target.closest("[data-cell]");
    if (!cell || !yours() || sending) { return; }
    var again = path.concat(cell.dataset.cell), fits = function (button) { return (button.dataset.cells + " ").indexOf(again.join(" ") + " ") === 0; };
    var buttons = mark();
    if (!buttons.some(fits)) { again = [cell.dataset.cell]; }
    path = buttons.some(fits) ? again : [];
    var whole = buttons.find(function (button) { return button.dataset.cells === path.join(" "); });
    if (whole) { path = []; whole.click(); }
    mark();
  }
  if (document.getElementById("board")) { document.getElementById("board").addEventListener("click", click); }

  if (form) {
    form.addEventListener("submit", function (event) {
      event.preventDefault();
      if (yours()) { send(form.getAttribute("action"), event.submitter && event.submitter.name === "action" ? event.submitter.value : field.value); }
    });
    giveUp.addEventListener("submit", function (event) {
      event.preventDefault();
      if (yours()) { send(giveUp.getAttribute("action"), null); }
    });
    permit();
  }
  follow();
})();
