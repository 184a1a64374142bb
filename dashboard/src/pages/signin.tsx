/** Sign-in: a token is exchanged for a session that scripts cannot read. */
import { useState } from "preact/hooks";
import { apiUrl, ask, ApiError, serverUrl, wordsOf } from "../api.ts";
import { useTitle } from "../hooks.ts";
import { Command, Problem } from "../ui.tsx";

export function SignInPage() {
  useTitle("Sign in");
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const signIn = async (): Promise<void> => {
    setBusy(true);
    try {
      await ask(apiUrl(["session"]), { method: "POST", body: { token: token.trim() } });
      location.reload();
    } catch (error) {
      setBusy(false);
      setProblem(error instanceof ApiError && error.status === 401 ? "Invalid token: mistyped, expired or revoked." : wordsOf(error));
    }
  };
  return (
    <main id="main" class="sign-in">
      <h1>Headway</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void signIn();
        }}
      >
        <label>
          Token
          <input type="password" required autofocus autocomplete="current-password" spellcheck={false} value={token} placeholder="hw_…" onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <Problem words={problem} />
        <button type="submit" class="main" disabled={isBusy}>
          Sign in
        </button>
      </form>
      <div class="faint">
        <p>No token yet? Create one on a host with access to the store:</p>
        <Command line="headway tokens create me --role admin" />
        <p class="small-text">This server is {serverUrl()}. The token is sent to it once, and is not kept by the browser.</p>
      </div>
    </main>
  );
}
