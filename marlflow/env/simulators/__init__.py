"""Other packages' environments as PettingZoo's: teams of gymnasium, LBF, RWARE, OpenSpiel; and PettingZoo's by id."""
