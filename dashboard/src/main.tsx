/** The entry point: load the caller, open the live connection, and show the page of the address. */
import { effect } from "./signals.ts";
import { Component, render, type ComponentChildren } from "preact";
import { useTitle } from "./hooks.ts";
import "../styles.css";
import { needsSignIn, wordsOf } from "./api.ts";
import { startKeys } from "./keys.ts";
import { startLive, stopLive } from "./live.ts";
import { JobPage } from "./pages/job.tsx";
import { JobsPage } from "./pages/jobs.tsx";
import { LimitPage, LimitsPage } from "./pages/limits.tsx";
import { NowPage } from "./pages/now.tsx";
import { ProblemsPage } from "./pages/problems.tsx";
import { QueuesPage } from "./pages/queues.tsx";
import { SchedulePage } from "./pages/schedule.tsx";
import { SchedulesPage } from "./pages/schedules.tsx";
import { SettingsPage } from "./pages/settings.tsx";
import { SignInPage } from "./pages/signin.tsx";
import { TenantPage, TenantsPage } from "./pages/tenants.tsx";
import { route, startRouter } from "./router.ts";
import { Shell } from "./shell.tsx";
import { readMe, readStats, startState, startTheme } from "./state.ts";
import { Toasts } from "./toasts.tsx";
import { Empty } from "./ui.tsx";

function Current() {
  const [first, second] = route.value.path;
  switch (first) {
    case undefined:
      return <NowPage />;
    case "jobs":
      return second === undefined ? <JobsPage /> : <JobPage key={second} id={second} />;
    case "schedules":
      return second === undefined ? <SchedulesPage /> : <SchedulePage key={`${route.value.query["tenant"] ?? ""}\u0000${second}`} name={second} tenant={route.value.query["tenant"]} />;
    case "queues":
      return <QueuesPage />;
    case "limits":
      return second === undefined ? <LimitsPage /> : <LimitPage key={second} name={second} />;
    case "tenants":
      return second === undefined ? <TenantsPage /> : <TenantPage key={second} name={second} />;
    case "problems":
      return <ProblemsPage />;
    case "settings":
      return <SettingsPage />;
    default:
      return <Nowhere />;
  }
}

function Nowhere() {
  useTitle("Not found");
  return (
    <Empty title="Page not found">
      <p>
        <a href="#/">Now</a> shows how things are.
      </p>
    </Empty>
  );
}

/** An error boundary: a bug in one page must not break the others. */
class Guard extends Component<{ address: string; children: ComponentChildren }, { words: string | null; address: string }> {
  override state = { words: null as string | null, address: this.props.address };

  static override getDerivedStateFromError(error: unknown): { words: string } {
    return { words: wordsOf(error) };
  }

  override componentDidUpdate(): void {
    if (this.state.words !== null && this.state.address !== this.props.address) this.setState({ words: null, address: this.props.address });
    else if (this.state.address !== this.props.address) this.setState({ address: this.props.address });
  }

  override render() {
    if (this.state.words === null) return this.props.children;
    return (
      <Empty title="This page has crashed">
        <p>{this.state.words}</p>
        <p>Other pages still work. Reloading may help; jobs are not affected.</p>
      </Empty>
    );
  }
}

function App() {
  return (
    <>
      {needsSignIn.value ? (
        <SignInPage />
      ) : (
        <Shell>
          <Guard address={route.value.path.join("/")}>
            <Current />
          </Guard>
        </Shell>
      )}
      <Toasts />
    </>
  );
}

startTheme();
startRouter();
startKeys();
startState();
const root = document.getElementById("app");
if (root !== null) {
  root.replaceChildren();
  render(<App />, root);
}
void readMe().then(
  () => startLive(() => void readMe().catch(() => undefined)),
  () => needsSignIn.value || startLive(() => void readMe().catch(() => undefined)),
);
effect(() => {
  if (needsSignIn.value) stopLive();
});
void readStats();
