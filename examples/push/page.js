"use strict";
// By id: what is asked, what has come of it, and where it stands in the page.
const underWay = new Map();
const line = document.getElementById("line");
let socket, pause_ms = 250;

function connect() {
  socket = new WebSocket(new URL("socket", location.href.replace(/^http/, "ws")));
  socket.onopen = () => {
    line.textContent = "connected";
    pause_ms = 250;
    for (const [id, {ask}] of underWay) socket.send(JSON.stringify({id, ask}));
  };
  socket.onmessage = message => hear(JSON.parse(message.data));
  socket.onclose = () => {
    line.textContent = "connecting again; what is asked goes on";
    setTimeout(connect, pause_ms);
    pause_ms = Math.min(2 * pause_ms, 10000);
  };
}

function hear(said) {
  const request = underWay.get(said.id);
  if (request === undefined) return;
  if (said.event !== undefined) hearEvent(request, said);
  if (said.answer !== undefined) {
    // The whole, whatever was missed on the way.
    request.text.textContent = said.answer.split("\n").filter(each => each.startsWith("data:")).map(each => textOf(each.slice(5))).join("");
    end(said.id, request, `${request.events} events came, in ${((performance.now() - request.begun_ms) / 1000).toFixed(1)} s`);
  }
  if (said.dead !== undefined || said.error !== undefined) {
    request.text.classList.add("failed");
    end(said.id, request, said.dead ?? said.error);
  }
}

function hearEvent(request, said) {
  if (request.execution !== said.execution) {
    // A server died: the answer begins anew.
    request.execution = said.execution;
    request.text.textContent = "";
  }
  request.events += 1;
  request.text.textContent += textOf(said.event);
}

function textOf(event) {
  if (event.trim() === "[DONE]") return "";
  const {text, delta} = JSON.parse(event).choices?.[0] ?? {};
  return text ?? delta?.content ?? "";
}

function end(id, request, how) {
  underWay.delete(id);
  request.how.textContent = how;
}

document.getElementById("ask").onsubmit = submitted => {
  submitted.preventDefault();
  const prompt = document.getElementById("question").value;
  const ask = {model: document.getElementById("model").value, prompt, max_tokens: 64, stream: true};
  const item = document.createElement("li"), text = document.createElement("p"), how = document.createElement("small");
  item.append(Object.assign(document.createElement("strong"), {textContent: prompt}), text, how);
  document.getElementById("answers").prepend(item);
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, "0")).join("");
  underWay.set(id, {ask, text, how, events: 0, execution: "", begun_ms: performance.now()});
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({id, ask}));
};

fetch("/v1/models").then(found => found.json()).then(({data}) => {
  for (const {id} of data) document.getElementById("model").add(new Option(id));
}).catch(error => { line.textContent = `no models: ${error}`; });
connect();
