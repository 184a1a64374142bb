/** The JSX factory; the build injects it into every module with JSX. */
export { Fragment, h } from "preact";
