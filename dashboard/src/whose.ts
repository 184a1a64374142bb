/** References to schedules: names are unique per tenant, and the default tenant is not shown. */
import type { Query } from "./api.ts";
import { apiUrl } from "./api.ts";
import { command, type Options } from "./cli.ts";
import { href } from "./router.ts";
import { seesAll } from "./state.ts";

export interface Ref {
  name: string;
  tenant?: string | undefined;
}

/** Return the tenant if it must be given: a token of one tenant means its own. */
function whose({ tenant }: Ref): { tenant?: string } {
  return seesAll.value && tenant && tenant !== "default" ? { tenant } : {};
}

/** The address of a schedule's page. */
export function scheduleHref(ref: Ref, query: Readonly<Record<string, string | undefined>> = {}): string {
  return href(["schedules", ref.name], { ...whose(ref), ...query });
}

/** The API URL of a sub-resource of a schedule. */
export function scheduleUrl(ref: Ref, parts: readonly string[] = [], query: Query = {}): string {
  return apiUrl(["schedules", ref.name, ...parts], { ...whose(ref), ...query });
}

/** Build a command about a schedule. A name with a slash could be taken for `tenant/name`. */
export function scheduleCommand(verb: string, ref: Ref, options: Options = {}): string {
  const said = ref.name.includes("/") && ref.tenant ? { tenant: ref.tenant } : whose(ref);
  return command(["schedules", verb, ref.name], { ...options, ...said });
}

/** Return its label on the command line. */
export function scheduleLabel(ref: Ref): string {
  return whose(ref).tenant ? `${ref.tenant}/${ref.name}` : ref.name;
}
