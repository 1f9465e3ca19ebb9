// Plays a stretch, as it is or of one band, at full speed or slowed (and lower); knows where it is.
import { windowAddress } from "./ask.js";

export class Player {
  constructor() { this.context = null; this.playing = null; this.wanted = 0; }

  async play(recording, begin_s, seconds, band, speed) {
    this.stop();
    const turn = (this.wanted += 1);
    this.context ??= new AudioContext();
    const more = band ? { low_hz: band[0].toFixed(1), high_hz: band[1].toFixed(1) } : {};
    const response = await fetch(windowAddress("sound", recording, begin_s, seconds, more));
    if (!response.ok) throw new Error("this stretch cannot be played");
    const buffer = await this.context.decodeAudioData(await response.arrayBuffer());
    if (turn !== this.wanted) return;  // stopped or replaced meanwhile
    if (this.context.state === "suspended") await this.context.resume();
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.playbackRate.value = speed;
    source.connect(this.context.destination);
    const playing = { source, recording, begin_s, speed, seconds: buffer.duration, start: this.context.currentTime };
    source.onended = () => { if (this.playing === playing) this.playing = null; };
    this.playing = playing;
    source.start();
  }

  stop() {
    this.wanted += 1;
    const { playing } = this;
    this.playing = null;
    if (playing) playing.source.stop();
  }

  position() {  // {recording, at_s}, or null when silent
    const { playing } = this;
    if (!playing) return null;
    const gone_s = (this.context.currentTime - playing.start) * playing.speed;
    return { recording: playing.recording, at_s: playing.begin_s + Math.min(gone_s, playing.seconds) };
  }
}
