/** What draws charts: a file of its own (see build.mjs), so that no page waits for it. */
export { default } from "uplot";
