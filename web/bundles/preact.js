export { render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { signal } from "@preact/signals";
import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
