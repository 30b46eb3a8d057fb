"""The decision log of one process: begun, changed and ended as the config says."""

from __future__ import annotations

import time
from pathlib import Path

from balancer.config.config import Config
from balancer.config.logs import DecisionLogSection
from balancer.core.router import Router
from balancer.operate.decision_log.files import DecisionFiles
from balancer.operate.decision_log.recording import Recording
from balancer.operate.metrics import Metrics
from balancer.operate.native_recording import recording_of
from balancer.operate.recorder import Recorder


class KeptLog:
    """Has decisions recorded while the config asks for it."""

    def __init__(self, router: Router, recorder: Recorder, metrics: Metrics, process: str, seed: int) -> None:
        self._router, self._recorder, self._metrics = router, recorder, metrics
        self._process, self._seed = process, seed
        self.files: DecisionFiles | None = None
        """Where it goes; None: nowhere."""
        self._recording: Recording | None = None
        self._asked: tuple[DecisionLogSection, Path | None] | None = None

    def configure(self, config: Config, source: Path, now_s: float) -> None:
        """Begin, change or end it, where the config, whose file is `source`, says other than before."""
        section, folder = config.decision_log, config.decision_log_folder(source)
        if (section, folder) == self._asked:
            return
        self._asked = (section, folder)
        self.stop()
        if folder is None or not section.share:
            return
        self.files = DecisionFiles(
            folder,
            self._process,
            section.max_file_bytes,
            section.max_files,
            count=lambda result, lines: self._metrics.decision_log_lines.labels(result).inc(lines),
        )
        self._recording = recording_of(
            self._router,
            self.files,
            process=self._process,
            seed=self._seed,
            share=section.share,
            now_s=now_s,
            unix_s=time.time(),
        )
        self._recorder.record(self._recording)

    def stop(self, wait_s: float = 0.0) -> None:
        """End it; `wait_s`: for how long what is recorded may take to be written."""
        self._recorder.record(None)
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        if self.files is not None:
            self.files.close(wait_s)
            self.files = None
