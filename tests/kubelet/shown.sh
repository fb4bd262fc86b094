#!/bin/sh
# Shows the simulated driver the cards of NVIDIA_VISIBLE_DEVICES, as NVIDIA's runtime would, and runs the command.
HAMI_SIM_VISIBLE_DEVICES="$NVIDIA_VISIBLE_DEVICES" exec "$@"
