/** What elements are made by; the build puts it into every module that has some, because it is shorter than the rest. */
export { Fragment, h } from "preact";
