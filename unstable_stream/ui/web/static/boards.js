"use strict";
// Put the last board of each game into the list of games, once the list is there.
(function () {
  var known = {};
  function fill() {
    var list = document.querySelector("[data-boards]");
    if (!list) { return; }
    var places = Array.from(list.querySelectorAll("[data-board]"));
    places.forEach(function (place) {
      var board = known[place.dataset.board];
      if (board && !place.firstChild) { place.appendChild(board.cloneNode(true)); }
    });
    var wanted = places.map(function (place) { return place.dataset.board; }).filter(function (game) { return !(game in known); });
    if (!wanted.length) { return; }
    fetch(list.dataset.boards + "?" + wanted.map(function (game) { return "game=" + encodeURIComponent(game); }).join("&"), { credentials: "same-origin" })
      .then(function (answer) { if (!answer.ok) { throw new Error(answer.status); } return answer.text(); })
      .then(function (text) {
        wanted.forEach(function (game) { known[game] = null; });
        new DOMParser().parseFromString(text, "text/html").querySelectorAll("[data-of]").forEach(function (one) { known[one.dataset.of] = one.firstElementChild; });
        fill();
      })
      .catch(function () { /* the archive was busy: the list goes without boards until it changes */ });
  }
  document.addEventListener("refreshed", fill);
  fill();
})();
