// The script of the console. It loads the page again every two seconds, and changes as little of
// it as it can, so that the focus and a selection stay. Without it, the pages and the forms work
// all the same.
"use strict";

const pauseButton = document.querySelector("[data-pause]");
const zoneButton = document.querySelector("[data-zone]");

// kept reads and writes what this browser remembers. A browser may forbid it.
const kept = {
	get(name) { try { return localStorage.getItem(name); } catch { return null; } },
	set(name, value) { try { localStorage.setItem(name, value); } catch { /* forgotten with the page */ } },
};

// morph makes the children of one element equal to the children of another.
function morph(now, next) {
	const have = [...now.childNodes], want = [...next.childNodes];
	want.forEach((node, i) => {
		const old = have[i];
		if (!old) {
			now.append(node);
		} else if (old.nodeType !== node.nodeType || old.nodeName !== node.nodeName) {
			old.replaceWith(node);
		} else if (node.nodeType !== Node.ELEMENT_NODE) {
			if (old.data !== node.data) old.data = node.data;
		} else {
			for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
			for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
			morph(old, node);
		}
	});
	have.slice(want.length).forEach((node) => node.remove());
}

// Live or paused. A pause lasts until the person ends it.
function setState(state, text) {
	if (!pauseButton) return;
	pauseButton.dataset.state = state;
	pauseButton.lastElementChild.textContent = text;
	pauseButton.setAttribute("aria-pressed", String(state === "paused"));
}

const isPaused = () => kept.get("paused") === "yes";

// reload loads the page again, one request at a time, and shows its parts. A page that is not
// visible loads nothing.
async function reload() {
	if (isPaused() || document.hidden) return;
	try {
		const response = await fetch(location.href, { signal: AbortSignal.timeout(10_000) }); // longer than the console takes
		const next = new DOMParser().parseFromString(await response.text(), "text/html");
		if (isPaused()) return;
		const parts = next.querySelectorAll("[data-part]");
		if (!parts.length) throw new Error("not a page of the console");
		for (const part of parts) {
			showTimes(part);
			morph(document.querySelector(`[data-part="${part.dataset.part}"]`), part);
		}
		setState("live", "Live");
	} catch {
		setState("lost", "Lost");
	}
}

// Times are in UTC, or in the zone of the browser. The title always has the other one.
const two = (n) => String(n).padStart(2, "0");

function localTime(at) {
	return at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate()) + " " +
		two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds()) + "." + String(at.getMilliseconds()).padStart(3, "0");
}

function showTimes(root) {
	const local = kept.get("zone") === "local";
	for (const e of root.querySelectorAll("time[datetime]")) {
		const at = new Date(e.dateTime);
		const texts = [e.dateTime.replace("T", " ").replace("Z", ""), localTime(at)];
		const long = e.textContent.includes("-"); // with a date
		const begin = long ? 0 : 11, end = long ? 19 : 23;
		e.textContent = texts[local ? 1 : 0].slice(begin, end);
		e.title = local ? texts[0] + " UTC" : texts[1] + " local time";
	}
	zoneButton.textContent = local ? "Local" : "UTC";
}

// Keys: / finds, p pauses, z changes the zone. With other keys the browser does what it does.
document.addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
	const action = { "/": () => document.querySelector(".find input").focus(), p: () => pauseButton?.click(), z: () => zoneButton.click() }[event.key];
	if (!action) return;
	event.preventDefault();
	action();
});

zoneButton.addEventListener("click", () => {
	kept.set("zone", kept.get("zone") === "local" ? "utc" : "local");
	showTimes(document);
});
zoneButton.hidden = false;
showTimes(document);

if (pauseButton) { // the page lives
	const show = () => setState(isPaused() ? "paused" : "live", isPaused() ? "Paused" : "Live");
	pauseButton.addEventListener("click", () => {
		kept.set("paused", isPaused() ? "no" : "yes");
		show();
	});
	pauseButton.hidden = false;
	show();
	(async () => {
		for (;;) {
			await new Promise((done) => setTimeout(done, 2000));
			await reload();
		}
	})();
}
