// Numbers, dates and names as text.

const WHOLE = new Intl.NumberFormat("en");
const TIDY = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const whole = (number) => WHOLE.format(number);
export const count = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;
export const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
export const tidy = (number) => TIDY.format(number);
export const bits = (distance) => `${tidy(distance)} ${tidy(distance) === "1" ? "bit" : "bits"}`;
export const clusterTitle = (cluster) => cluster.name || `Cluster ${cluster.number}`;
export const fileName = (path) => path.split("/").pop();

export function seconds(duration) {
  if (duration < 60) return `${duration.toFixed(1)} s`;
  if (duration < 3600) return `${Math.floor(duration / 60)} min ${Math.round(duration % 60)} s`;
  return `${Math.floor(duration / 3600)} h ${Math.round((duration % 3600) / 60)} min`;
}

export function day(iso) {
  const options = { day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit" };
  return new Date(iso).toLocaleString("en-GB", options);
}
