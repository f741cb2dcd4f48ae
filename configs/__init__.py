"""Data the project ships: model and GPU facts, the serving experiments it learns from, published errors of
earlier models, and run settings. Every file names its public source; `simulator.serving.bundled` reads them."""
