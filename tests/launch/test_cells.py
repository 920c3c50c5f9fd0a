from olmo_hydra.launch.cells import tagged


def test_science_alone_names_its_runs_itself() -> None:
    cells = [["model.head_dim=32", "run.tag=a"], ["model.head_dim=64", "run.tag=a"]]
    assert tagged(cells) == cells


def test_swept_operations_become_the_tag() -> None:
    cells = [["hardware=cpu", "train.seed=0", "eval.every=5"], ["hardware=cpu_sim", "train.seed=0", "eval.every=5"]]
    assert [cell[-1] for cell in tagged(cells)] == ["run.tag=hardware-cpu", "run.tag=hardware-cpu_sim"]
    given = [["checkpoint.every=1", "run.tag=b"], ["checkpoint.every=2", "run.tag=b"]]
    assert tagged(given) == [["checkpoint.every=1", "run.tag=b-every-1"], ["checkpoint.every=2", "run.tag=b-every-2"]]


def test_odd_values_make_a_folder_name() -> None:
    cells = [["hardware.compiler_options={a: b}"], ["hardware.compiler_options={}"]]
    assert tagged(cells)[0][-1] == "run.tag=compiler_options-_a_b_"
