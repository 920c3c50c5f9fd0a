import hydra
from omegaconf import OmegaConf
import olmo_hydra.config.root
@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    c = OmegaConf.to_object(cfg)
    print(c)
main()
