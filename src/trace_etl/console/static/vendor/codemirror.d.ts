export { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export { PostgreSQL, sql } from "@codemirror/lang-sql";
export { HighlightStyle, bracketMatching, syntaxHighlighting } from "@codemirror/language";
export { Compartment, EditorState, Prec } from "@codemirror/state";
export {
  EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers, placeholder,
} from "@codemirror/view";
export { tags } from "@lezer/highlight";
