// Loads the page again when one of its files did not come: without all of them it would stay empty.
// It is no module, so that it runs before those are loaded.

const AGAIN_MS = 2000;

addEventListener(
  "error",
  (event) => {
    if (event.target instanceof HTMLScriptElement || event.target instanceof HTMLLinkElement) setTimeout(() => location.reload(), AGAIN_MS);
  },
  true, // the error of an element does not bubble
);
