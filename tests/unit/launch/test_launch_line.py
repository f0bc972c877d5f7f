"""Launch lines of other programs become the `ipexctl run` that does the same, or are refused; nothing is guessed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ipexctl.cli import app
from ipexctl.cli.job import _expand_mpirun_line
from ipexctl.data import read_data
from ipexctl.decide.launch.launch_line import LaunchLine, LaunchTable
from ipexctl.model.errors import UsageError
from ipexctl.model.toml import parse_toml

TABLE = LaunchTable(**parse_toml(read_data("launchers.toml")))
FILES = {
    "job.sh": "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=4\n#SBATCH -J name\nsource env.sh\n"
    "X=1 srun python train.py \\\n    --epochs 3\n",
    "two.sh": "srun python a.py\nsrun python b.py\n",
    "none.sh": "#SBATCH -N 2\necho srun python a.py\n",
    "own.sh": "sbatch own.sh\n",
}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        # Hugging Face's guides
        ("mpirun -f hostfile -n 16 -ppn 4 accelerate launch nlp_example.py",
         "-f hostfile -n 16 --ppn 4 --launcher accelerate nlp_example.py"),
        ("mpirun -n 2 -genv OMP_NUM_THREADS=23 python3 run_qa.py --ddp_backend ccl --use_ipex",
         "-n 2 --threads 23 run_qa.py --ddp_backend ccl --use_ipex"),
        ("MASTER_ADDR=xxx CCL_WORKER_COUNT=1 mpirun -f hostfile -n 4 -ppn 2 -genv OMP_NUM_THREADS 23 python3 run_qa.py",
         "--ccl-workers 1 -f hostfile -n 4 --ppn 2 --threads 23 run_qa.py"),
        # Intel MPI and MPICH
        ("mpiexec.hydra -hosts a:1,b:1 -np 4 -genvlist A,B -genv X 1 -l -bootstrap ssh /bin/python3.11 -u x.py -n 9",
         "--hosts a,b -n 4 --pass-env A --pass-env B -e X=1 x.py -n 9"),
        # Open MPI
        ("mpirun --host a,b -np 2 -x BAR -x FOO=1 --bind-to none --allow-run-as-root python -m pkg.train -x",
         "--hosts a,b -n 2 --pass-env BAR -e FOO=1 --launcher module pkg.train -x"),
        ("mpirun -n 2 numactl -C 0-3 -m 0 python x.py", "-n 2 --cpus 0-3 x.py"),
        # torchrun
        ("torchrun --nnodes=1:2 --nproc_per_node 4 --rdzv-backend c10d --master-port 29501 train.py --lr 1",
         "--ppn 4 --port 29501 -n 8 train.py --lr 1"),
        ("python -m torch.distributed.run --standalone --nproc-per-node=2 -m pkg.train",
         "--ppn 2 --launcher module pkg.train"),
        # ipexrun
        ("ipexrun cpu --nnodes 2 --nprocs-per-node 2 --ccl-worker-count 1 --hostfile h train.py",
         "--ppn 2 --ccl-workers 1 -f h -n 4 train.py"),
        ("ipexrun --throughput-mode --memory-allocator jemalloc x.py",
         "--instances per-node --allocator jemalloc x.py"),
        ("python -m intel_extension_for_pytorch.cpu.launch --ninstances 4 --ncores_per_instance 2 infer.py",
         "--instances 4 --cores-per-instance 2 infer.py"),
        # Slurm
        ("srun -N2 -n8 --mpi=pmi2 python train.py", "-n 8 --hosts slurm train.py"),
        ("sbatch job.sh", "--hosts slurm --ppn 4 -e X=1 -n 8 train.py --epochs 3"),
        ("sbatch --ntasks-per-node 2 -N 3 -J other job.sh", "--ppn 2 --hosts slurm -e X=1 -n 6 train.py --epochs 3"),
        ("sbatch -w n1,n2 --ntasks-per-node 2 --wrap 'python train.py --a \"b c\"'",
         "--hosts n1,n2 --ppn 2 train.py --a 'b c'"),
        ("accelerate launch --config_file c.yaml --mixed_precision bf16 --ipex train.py",
         "--accelerate-config c.yaml -e ACCELERATE_MIXED_PRECISION=bf16 -e ACCELERATE_USE_IPEX=true"
         " --launcher accelerate train.py"),
    ],
)  # fmt: skip
def test_a_line_becomes_these_words(line: str, words: str) -> None:
    options, script = LaunchLine(line, TABLE, FILES.__getitem__).convert()
    assert shlex.join([*options, *script]) == words


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mpirun --frobnicate 3 python x.py", "mpirun's option --frobnicate is not known here"),
        ("mpirun -n", "mpirun's option -n lacks its value"),
        ("mpirun -n 2 ./a.out", "starts no Python script that is known here: ./a.out"),
        ("sbatch two.sh", "the batch file two.sh has 2 launch lines"),
        ("sbatch none.sh", "the batch file none.sh has 0 launch lines"),
        ("sbatch own.sh", "the batch file own.sh has 0 launch lines"),
        ("sbatch job.sh 3", "the batch file job.sh is given arguments"),
        ("srun job.sh", "starts no Python script that is known here: job.sh"),
        ("mpirun -n 2", "starts no Python script that is known here: (none)"),
        ("mpirun -n 2 \x1b[31m", "starts no Python script that is known here: \\x1b[31m"),
    ],
)
def test_what_is_not_known_is_refused(line: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        LaunchLine(line, TABLE, FILES.__getitem__).convert()
    assert why in refused.value.sentence


def test_options_beside_the_line_win_and_words_of_a_script_are_its_own() -> None:
    words = ["--dry-run", "--from-mpirun", "mpirun -n 4 python x.py --from-mpirun y", "-n", "2"]
    assert _expand_mpirun_line(words) == ["-n", "4", "--dry-run", "-n", "2", "x.py", "--from-mpirun", "y"]
    assert _expand_mpirun_line(["x.py", "--epochs", "3"]) == ["x.py", "--epochs", "3"]
    with pytest.raises(UsageError, match="closing quotation"):
        _expand_mpirun_line(["--from-mpirun", "mpirun 'x"])


def test_the_command_says_what_is_wrong_with_a_line() -> None:
    done = CliRunner().invoke(app, ["run", "--hosts", "a", "--from-mpirun", "mpirun --frobnicate python x.py"])
    assert done.exit_code == 2
    assert "mpirun's option --frobnicate is not known here" in done.output


def test_every_target_of_the_table_is_an_option_of_run() -> None:
    command: Any = typer.main.get_command(app)
    own = {option for param in command.commands["run"].params for option in param.opts}
    special = {"", "variable", "names", "hosts", "nodes", "line", "module"}
    targets = [target for options in TABLE.options.values() for target in options.values()]
    assert {target.rstrip("!").split(" ")[0] for target in targets} <= own | special
    assert {*TABLE.variables.values()} <= own | {""}
