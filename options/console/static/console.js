// The script of the console. It receives the parts of the page that change, and changes as
// little of the page as it can, so that the focus and a selection stay. Without it, the
// lists and the forms work all the same.
"use strict";

const parts = new Map([...document.querySelectorAll("[data-part]")].map((e) => [e.dataset.part, e]));
const pauseButton = document.querySelector("[data-pause]");
const zoneButton = document.querySelector("[data-zone]");
let stream = null;
let after = document.body.dataset.after;

// kept reads and writes what this browser remembers. A browser may forbid it.
const kept = {
	get(name) { try { return localStorage.getItem(name); } catch { return null; } },
	set(name, value) { try { localStorage.setItem(name, value); } catch { /* forgotten with the page */ } },
};

// morph makes the children of one element those of another one.
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

function show(event) {
	after = event.lastEventId;
	for (const [name, html] of Object.entries(JSON.parse(event.data))) {
		const next = document.createElement("template");
		next.innerHTML = html; // the server has escaped it
		showTimes(next.content);
		if (parts.has(name)) morph(parts.get(name), next.content);
	}
}

// Live or paused. A pause lasts until the person ends it, on all pages.
function setState(state, text) {
	pauseButton.dataset.state = state;
	pauseButton.lastElementChild.textContent = text;
	pauseButton.setAttribute("aria-pressed", String(state === "paused"));
}

function listen() {
	stream = new EventSource("/live?after=" + encodeURIComponent(after) + "&parts=" + [...parts.keys()].join(","));
	stream.onopen = () => setState("live", "Live");
	stream.onmessage = show;
	stream.onerror = () => {
		setState("lost", "Lost");
		if (stream.readyState !== EventSource.CLOSED) return; // it comes again by itself
		setTimeout(() => { if (kept.get("paused") !== "yes") listen(); }, 2000);
	};
}

function setPaused(paused) {
	kept.set("paused", paused ? "yes" : "no");
	if (stream) stream.close();
	if (paused) setState("paused", "Paused");
	else listen();
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
	const action = { "/": () => document.querySelector(".find input").focus(), p: () => pauseButton.click(), z: () => zoneButton.click() }[event.key];
	if (!action) return;
	event.preventDefault();
	action();
});

pauseButton.addEventListener("click", () => setPaused(kept.get("paused") !== "yes"));
zoneButton.addEventListener("click", () => {
	kept.set("zone", kept.get("zone") === "local" ? "utc" : "local");
	showTimes(document);
});
// A browser keeps few connections to a host, so a page that is not seen has none.
document.addEventListener("visibilitychange", () => {
	if (kept.get("paused") === "yes") return;
	if (document.hidden) stream.close();
	else listen();
});

pauseButton.hidden = zoneButton.hidden = false;
showTimes(document);
setPaused(kept.get("paused") === "yes");
