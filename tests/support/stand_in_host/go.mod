module github.com/inference-sim/inference-sim

go 1.21

require github.com/sirupsen/logrus v0.0.0

replace github.com/sirupsen/logrus => ./logrus
