# SPDX-License-Identifier: Apache-2.0
"""Prints what TensorBoard's own reader finds in a run directory: read_tensorboard.py RUN

One line per scalar ("train: train_loss 4 8 12": folder, tag, steps) and per setting of the HParams
tab ("hparam: batch_size 32.0"). Exits with code 77 where TensorBoard is not installed.
"""
import pathlib
import sys

try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import metadata
except ImportError as error:
    print("TensorBoard is not installed:", error)
    sys.exit(77)

run = pathlib.Path(sys.argv[1])
for name, folder in (("train", run), ("eval", run / "eval")):
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        print(f"{name}: {tag}", *steps)
    if name == "eval":
        continue
    found = events.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(found[metadata.SESSION_START_INFO_TAG])
    for key, value in sorted(start.hparams.items()):
        print(f"hparam: {key}", getattr(value, value.WhichOneof("kind")))
    if metadata.SESSION_END_INFO_TAG in found:
        end = metadata.parse_session_end_info_plugin_data(found[metadata.SESSION_END_INFO_TAG])
        print("hparam status:", end.status)
