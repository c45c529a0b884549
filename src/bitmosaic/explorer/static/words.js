// Numbers and names as people read them.

const WHOLE = new Intl.NumberFormat("en");

export const whole = (number) => WHOLE.format(number);
export const count = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;
export const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
export const bits = (distance) => `${tidy(distance)} ${distance === 1 ? "bit" : "bits"}`;
export const tidy = (number) => (Number.isInteger(number) ? whole(number) : number.toFixed(1));
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
