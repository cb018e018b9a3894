"""From target, lock and fixes to an image: plan, context, build, proof, SBOM, other tools' forms."""
