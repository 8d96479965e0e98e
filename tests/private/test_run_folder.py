import pytest

from deepshare import plan, share, zoo
from deepshare.errors import PlanMismatchError
from deepshare.private.ir.trace import translate
from deepshare.private.run_folder import check_plan

SIZE = (3, 16, 16)


def test_another_plan_with_as_many_gates_is_refused() -> None:
    model = zoo.resnet18(width=4, num_classes=10)
    made, other = plan(model, SIZE, "50%"), plan(model, SIZE, "50%", layer_sharing=False)
    served = translate(share(model, made), SIZE)
    check_plan(served, made)
    with pytest.raises(PlanMismatchError, match=r"gates of layer1.* otherwise than the plan"):
        check_plan(served, other)
