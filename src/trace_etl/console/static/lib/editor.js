// The SQL editor. Its styles are in a shadow root: adopted style sheets need no exception in the page's policy.
import { html, useEffect, useRef } from "../vendor/preact.js";
import {
  EditorState, EditorView, HighlightStyle, PostgreSQL, Prec, autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, completionKeymap,
  defaultKeymap, drawSelection, history, historyKeymap, keymap, lineNumbers, placeholder, sql, syntaxHighlighting, tags, Compartment,
} from "../vendor/codemirror.js";

const theme = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "transparent", fontSize: "13px", minHeight: "150px" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", maxHeight: "45vh", overflow: "auto" },
  ".cm-content": { padding: "10px 0", caretColor: "var(--text)", minHeight: "150px" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--muted)", border: "none", paddingLeft: "6px" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "var(--accent-soft)" },
  ".cm-tooltip": { background: "var(--raised)", border: "1px solid var(--line-strong)", borderRadius: "6px", color: "var(--text)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent-soft)", color: "var(--text)" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-matchingBracket": { background: "var(--accent-soft) !important", color: "inherit" },
});
const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)", fontWeight: "600" }, { tag: [tags.string, tags.special(tags.string)], color: "var(--completed)" },
  { tag: tags.number, color: "var(--retrying)" }, { tag: [tags.lineComment, tags.blockComment], color: "var(--muted)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--paused)" },
]);

/**
 * `shown` replaces the text when it is another object. What is typed goes to `onChange` only: a text that came back
 * late would undo the keys after it.
 * @param {{shown: {text: string}, onChange: (text: string) => void, onRun: () => void, schema: Record<string, string[]>}} props
 */
export function Editor({ shown, onChange, onRun, schema }) {
  const host = useRef(/** @type {any} */ (null));
  const view = useRef(/** @type {any} */ (null));
  const calls = useRef({ onChange, onRun });
  const language = useRef(new Compartment());
  calls.current = { onChange, onRun };
  const makeLanguage = () => sql({ dialect: PostgreSQL, schema, upperCaseKeywords: true });
  useEffect(() => {
    const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
    view.current = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: shown.text,
        extensions: [
          lineNumbers(), history(), drawSelection(), bracketMatching(), closeBrackets(), autocompletion(), syntaxHighlighting(colours), theme,
          language.current.of(makeLanguage()), placeholder("SELECT …"), EditorView.contentAttributes.of({ "aria-label": "SQL query", tabindex: "0" }),
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (calls.current.onRun(), true) }])),
          keymap.of([...closeBracketsKeymap, ...completionKeymap, ...historyKeymap, ...defaultKeymap]),
          EditorView.updateListener.of((update) => update.docChanged && calls.current.onChange(update.state.doc.toString())),
        ],
      }),
    });
    return () => view.current.destroy();
  }, []);
  useEffect(() => {
    const current = view.current?.state.doc.toString();
    if (view.current && current !== shown.text) view.current.dispatch({ changes: { from: 0, to: current.length, insert: shown.text } });
  }, [shown]);
  useEffect(() => view.current?.dispatch({ effects: language.current.reconfigure(makeLanguage()) }), [schema]);
  return html`<div class="editor" ref=${host} />`;
}
