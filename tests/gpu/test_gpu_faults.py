"""Page faults on managed memory: what the driver shows, and what is said where it shows nothing."""

from forktask.experiments.sampling.gpu_faults import FaultCounter, as_text, gpu_faults

STATS = """replayable_faults      {0}
duplicates             3
faults_by_access_type:
  prefetch             0
  read                 1
  write                2
migrations:
  num_pages_in         {1} (4 MB)
  num_pages_out        {2} (4 MB)
replays:
  start                22
"""


def write(root, gpu, *numbers):
    folder = root / "proc/driver/nvidia-uvm/gpus" / gpu
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fault_stats").write_text(STATS.format(*numbers))


def test_faults_of_all_gpus_are_counted(tmp_path):
    """Check sums over GPUs, differences over steps, and the line that is printed."""
    write(tmp_path, "UVM-GPU-1", 100, 1000, 500)
    write(tmp_path, "UVM-GPU-2", 10, 20, 30)
    assert gpu_faults(tmp_path) == {"gpu": 110, "pages_to_gpu": 1020, "pages_to_host": 530}
    counter = FaultCounter(tmp_path)
    write(tmp_path, "UVM-GPU-1", 140, 1008, 500)
    faults = counter.per(4)
    assert (faults["gpu"], faults["pages_to_gpu"], faults["pages_to_host"]) == (10.0, 2.0, 0.0)
    assert "GPU 10.0 (all processes); pages moved to it 2.0, back 0.0" in as_text(faults)
