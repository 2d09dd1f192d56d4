"""Who computes what: a chain of layers cut into stages, each stage on one or more machines.

Every solver is a pure function of plain records (`crew`) and answers with a `Placement` (`placement`). How a step's
parts add up is handed in, so that whoever compares solvers judges them alike; each has its paper's way by default:

    depth     how deep and how wide: every number of stages is laid out, and the one predicted fastest is taken (Varuna)
    groups    equal groups by their links alone: partition, matching, path (DT-FM)
    chain     layers in a row over unequal peers, the slowest as fast as can be (FusionAI); cuts by speed (Holmes)
    fence     near peers in a row, so that only borders of clusters use slow links (FusionLLM)
    islands   replicas of a stage within one network, stages across (Holmes)
    rings     clusters and shares as the engine itself forms them (Ravnest): its functions are called, none is repeated

How far each may be from the best is measured against brute force: `python -m bench.plan.gaps`. `plan.stages` asks
depth, islands, chain and fence, of a model that no machine holds. Groups, which want equal machines, are asked by the
bench (DT-FM's scenarios); clusters and shares are what the engine decides by itself in a run. The engine runs what has
one stage; the rest says of itself that it is a plan only.
"""
