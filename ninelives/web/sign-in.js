// Signing in. Owns: the form that takes a key, and trying the key before it is kept. Refuses to know: what comes after.

import { get, key } from "./api.js";
import { el } from "./dom.js";

class SignIn extends HTMLElement {
  connectedCallback() {
    const field = el("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true,
      "aria-describedby": "key-help key-error" });
    const error = el("p", { id: "key-error", class: "error", role: "alert" });
    const button = el("button", { class: "main", type: "submit" }, "Sign in");
    const form = el("form", { class: "sign" },
      el("h1", {}, "Sign in"),
      el("label", { for: "key" }, "API key"), field, error, button,
      el("p", { id: "key-help", class: "soft" },
        "The server printed the key at its first start and keeps it in the file ", el("code", {}, "key"),
        " of its data directory. This tab forgets it when it is closed."));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const secret = field.value.trim();
      error.textContent = "";
      if (!/^[\x21-\x7e]+$/.test(secret)) { error.textContent = "A key has only visible ASCII signs."; return; }
      button.disabled = true;
      try {
        await get("/v1/models", { secret });
        key.set(secret);
        this.dispatchEvent(new CustomEvent("signed-in", { bubbles: true }));
      } catch (refused) {
        error.textContent = refused.status === 401 ? "The server does not know this key." : refused.message;
        field.select();
      } finally {
        button.disabled = false;
      }
    });
    this.replaceChildren(form);
    field.focus();
  }
}
customElements.define("sign-in", SignIn);
