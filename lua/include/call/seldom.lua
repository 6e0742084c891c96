--[[ seldom: lists that most calls do without, by name. So many files can have lists of a call, and each call spares to make them, and to ask
each file whether it has something to write: it asks once whether there are `any`. A file names under Lists those that it fills, and
under Reads those that others fill.
]]

local seldom = {}

local function reset()
  if seldom.any then
    for name in pairs(seldom) do
      seldom[name] = nil
    end
  end
end

--- A list; more may be added to it.
local function seldom_list(name)
  local list = seldom[name]
  if not list then
    list = {}
    seldom[name], seldom.any = list, true
  end
  return list
end
