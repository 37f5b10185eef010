// Loads the page again when one of its files did not come: without all of them it would stay empty.
// It is no module, so that it runs before those are loaded.

const FIRST_MS = 2_000;
const LONGEST_MS = 60_000; // a file that never comes is asked for once a minute
const TRIES = "loads without all files";
let isLoadedAgain = false;

addEventListener(
  "error",
  (event) => {
    const { target } = event;
    if (isLoadedAgain || !(target instanceof HTMLScriptElement || target instanceof HTMLLinkElement)) return;
    isLoadedAgain = true;
    const tries = Number(sessionStorage.getItem(TRIES));
    sessionStorage.setItem(TRIES, tries + 1);
    setTimeout(() => location.reload(), Math.min(FIRST_MS * 2 ** tries, LONGEST_MS));
  },
  true, // the error of an element does not bubble
);
addEventListener("load", () => isLoadedAgain || sessionStorage.removeItem(TRIES));
