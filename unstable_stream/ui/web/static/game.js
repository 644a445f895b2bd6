"use strict";
// Watch a game move by move, with keys and a slider; two games beside each other turn together.
(function () {
  var games = Array.prototype.map.call(document.querySelectorAll(".watched"), function (article) {
    return { article: article, moves: Array.prototype.slice.call(article.querySelectorAll(".move")), at: 0 };
  }).filter(function (game) { return game.moves.length; });
  var player = document.querySelector(".player");
  if (!games.length) { return; }
  var all = false, timer = null, first = true;

  function show(game, at, keep) {
    game.at = Math.max(0, Math.min(game.moves.length - 1, at));
    game.moves.forEach(function (move, place) { move.hidden = !all && place !== game.at; });
    if (all && !keep) { game.moves[game.at].scrollIntoView({ block: "nearest" }); }
  }
  function showAll(at, keep) {
    games.forEach(function (game) { show(game, at, keep); });
    player.querySelector("[data-slide]").value = furthest();
    player.querySelector("[data-count]").textContent = "move " + games.map(function (game) { return game.at + " (" + (game.at + 1) + " of " + game.moves.length + ")"; }).join(", ");
    games.forEach(function (game) {
      game.article.querySelectorAll(".movelist li a").forEach(function (link) {
        var here = link.getAttribute("href") === "#" + game.moves[game.at].id;
        if (here === link.hasAttribute("aria-current")) { return; }
        if (!here) { link.removeAttribute("aria-current"); return; }
        link.setAttribute("aria-current", "step");
        var list = link.closest("ol"), row = link.parentElement; // the list scrolls, the page does not
        if (row.offsetTop < list.scrollTop || row.offsetTop + row.offsetHeight > list.scrollTop + list.clientHeight) { list.scrollTop = row.offsetTop - list.clientHeight / 2; }
      });
    });
    var shown = games[0].moves[games[0].at];
    if (first) { first = false; return; } // an address without a move stays so, and the page at its top
    history.replaceState(null, "", location.pathname + location.search + "#" + shown.id);
  }
  function longest() { return Math.max.apply(null, games.map(function (game) { return game.moves.length; })); }
  function furthest() { return Math.max.apply(null, games.map(function (game) { return game.at; })); }
  function go(where) {
    if (where === "play") { play(timer === null); return; }
    play(false);
    showAll({ first: 0, before: furthest() - 1, next: furthest() + 1, last: longest() - 1 }[where]);
  }
  function play(on) {
    clearTimeout(timer); timer = null;
    if (on) {
      if (furthest() >= longest() - 1) { showAll(0); }
      timer = setTimeout(step, speed());
    }
    var button = player.querySelector("[data-go=play]");
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "❚❚ Pause" : "▶ Play";
  }
  function step() {
    if (furthest() >= longest() - 1) { play(false); return; }
    showAll(furthest() + 1);
    timer = setTimeout(step, speed());
  }
  function speed() { return Number(player.querySelector("[data-speed]").value); }

  player.hidden = false;
  player.querySelector("[data-slide]").max = longest() - 1;
  player.addEventListener("click", function (event) {
    var button = event.target.closest("[data-go]");
    if (button) { go(button.dataset.go); }
  });
  player.querySelector("[data-slide]").addEventListener("input", function (event) { play(false); showAll(Number(event.target.value)); });
  player.querySelector("[data-all]").addEventListener("change", function (event) {
    all = event.target.checked;
    showAll(furthest(), true);
  });
  player.querySelector("[data-copy]").addEventListener("click", function (event) {
    var button = event.target, says = button.textContent;
    function tell(text) { button.textContent = text; setTimeout(function () { button.textContent = says; }, 1500); }
    // Where a page is not served by this machine or encrypted, browsers have no clipboard.
    if (!navigator.clipboard) { prompt("The link", location.href); return; }
    navigator.clipboard.writeText(location.href).then(function () { tell("Copied"); }, function () { prompt("The link", location.href); });
  });
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]),select,textarea,summary,button,a:not(.movelist a),.scroll")) { return; }
    var other = { p: "prev", n: "next" }[event.key], link = other && document.querySelector(".near a[rel=" + other + "]");
    if (link) { link.click(); return; }
    var where = { ArrowLeft: "before", ArrowRight: "next", Home: "first", End: "last", " ": "play" }[event.key];
    if (where) { event.preventDefault(); go(where); }
  });
  function fromAddress() {
    var wanted = /move-(\d+)$/.exec(location.hash);
    var at = wanted ? games[0].moves.findIndex(function (move) { return move.dataset.turn === wanted[1]; }) : 0;
    showAll(Math.max(0, at));
  }
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
})();
