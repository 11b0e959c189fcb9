// Numbers, sizes, times and names as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (value) => whole.format(value);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export const share = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "0 %");

/** 1234567 -> 1.23M. */
export function short(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${letter}`;
  }
  return String(Number(value.toPrecision(3)));
}

export function bytes(value) {
  return value < 1024 ? `${value} B` : value < 1048576 ? `${(value / 1024).toFixed(1)} kB` : `${(value / 1048576).toFixed(1)} MB`;
}

export function seconds(value) {
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

/** Seconds since the epoch as local date and time. */
export function when(at) {
  const two = (number) => String(number).padStart(2, "0");
  const d = new Date(at * 1000);
  const day = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  return `${day} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

export const clip = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`);

const WORDS = {
  replied: "replied",
  step_budget: "out of steps",
  no_progress: "no progress",
  failed: "failed",
  cancelled: "cancelled",
};
/** How a request ended, in words. */
export const outcomeWord = (outcome) => WORDS[outcome] ?? "under way";
