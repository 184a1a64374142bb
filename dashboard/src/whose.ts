/** Which schedule is meant: names are unique per tenant, and the default one goes without saying. */
import type { Query } from "./api.ts";
import { apiUrl } from "./api.ts";
import { command, type Options } from "./cli.ts";
import { href } from "./router.ts";
import { seesAll } from "./state.ts";

export interface Ref {
  name: string;
  tenant?: string | undefined;
}

/** Say whose it is, where that has to be said: a token of one tenant means its own. */
function whose({ tenant }: Ref): { tenant?: string } {
  return seesAll.value && tenant && tenant !== "default" ? { tenant } : {};
}

/** The address of a schedule's page. */
export function scheduleHref(ref: Ref, query: Readonly<Record<string, string | undefined>> = {}): string {
  return href(["schedules", ref.name], { ...whose(ref), ...query });
}

/** The address of something of a schedule in the API. */
export function scheduleUrl(ref: Ref, parts: readonly string[] = [], query: Query = {}): string {
  return apiUrl(["schedules", ref.name, ...parts], { ...whose(ref), ...query });
}

/** Write a command about a schedule. A name with a slash could be taken for `tenant/name`. */
export function scheduleCommand(verb: string, ref: Ref, options: Options = {}): string {
  const said = ref.name.includes("/") && ref.tenant ? { tenant: ref.tenant } : whose(ref);
  return command(["schedules", verb, ref.name], { ...options, ...said });
}

/** Write its name as the command line has it where a name stands alone. */
export function scheduleLabel(ref: Ref): string {
  return whose(ref).tenant ? `${ref.tenant}/${ref.name}` : ref.name;
}
